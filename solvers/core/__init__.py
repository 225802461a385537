"""Code that every solver shares: settings, arguments, vectors, the loop and its stopping rule, derivatives."""
