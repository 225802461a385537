"""Code that every solver shares: settings, arguments, scaling, the loop and its stopping rule, derivatives."""
