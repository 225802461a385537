"""Sphinx's settings for the site; `assemble.py` writes its sources."""

import html
import inspect
import re
import sys
import tomllib
from pathlib import Path

from docutils import nodes

from jaxsparse_fmt import FORMATS, __version__

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import all_arguments, not_arguments

from solvers import cg

project, release, copyright = "jaxsparse", __version__, "the jaxsparse developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
extensions += ["sphinx.ext.viewcode", "sphinx_copybutton"]
autosummary_generate = False
copybutton_exclude = ".linenos, .gp, .go"  # prompts and outputs
myst_heading_anchors = 3
html_theme, html_title, html_show_sourcelink, html_copy_source = "furo", f"jaxsparse {__version__}", False, False
default_role = "code"  # docstrings write `x` as Markdown does
highlight_language = "none"  # for blocks that name none: text, shell
autodoc_typehints, autodoc_typehints_format = "signature", "short"
maximum_signature_line_length = 88  # longer ones have a line for each argument
python_display_short_literal_types = True
add_module_names = False  # a heading has the module
napoleon_use_rtype = napoleon_attr_annotations = napoleon_use_param = False  # docstrings tell shapes and types in words
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
exclude_patterns = ["files"]
html_css_files = ["site.css"]
html_static_path = ["static"]
html_logo = html_favicon = "static/logo.svg"
# The repository, where pyproject.toml names one: a link at the top, and one to the source of each page.
_project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
if _repository := _project.get("urls", {}).get("Repository"):
    html_theme_options = {"source_repository": _repository, "source_branch": "main", "source_directory": "docs/"}


def as_rest(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text: signs of reStructuredText lose their meaning, and indented paragraphs are code."""
    code, session, before = False, False, ""
    found = ["\\"] * (what == "property")  # an empty line: napoleon takes what precedes a colon in the first for a type
    for line in lines:
        indented = line.startswith("    ")
        if indented and not code and not before and found and not re.fullmatch(r"[A-Z]\w*:", _last(found)):
            found += ["::", ""]
            code = True
        elif line and not indented:
            code = False
        session = line == "Examples:" or (session and (not line or line.startswith(" ")))
        found.append(line if code or session else _escaped(line))
        before = line.strip()
    lines[:] = found


def real_arguments(app, what, name, obj, options, lines: list[str]) -> None:
    """An entry of Args must name arguments; a sentence there would be printed as one.

    Raises:
      ValueError: it names none.
    """
    if what in ("function", "method") and (unknown := not_arguments(obj, lines)):
        raise ValueError(f"{name}: Args has {', '.join(unknown)}, which is no argument")


def every_argument(app, what, name, obj, options, lines: list[str]) -> None:
    """A solver's page describes all of its arguments, also those that its docstring leaves to that of `cg`."""
    if what == "function" and "nullspace" in inspect.signature(obj).parameters:
        lines[:] = all_arguments(obj, lines, (inspect.getdoc(cg) or "").splitlines())


def without_fields(app, what, name, obj, options, signature, returned):
    """A format is made by its name, so the page leaves out the fields that its class takes."""
    return ("", None) if what == "class" and obj in FORMATS.values() else None


def in_short(app, what, name, obj, options, lines: list[str]) -> None:
    """A format is described by the first paragraph of its module; the picture is on other pages."""
    if what == "class" and obj in FORMATS.values():
        lines[:] = (inspect.getdoc(sys.modules[obj.__module__]) or "").split("\n\n")[0].splitlines()


def _last(lines: list[str]) -> str:
    return next((line for line in reversed(lines) if line), "")


def _escaped(line: str) -> str:
    parts = line.split("`")
    return "`".join(part if i % 2 else re.sub(r"\*\*|\|", r"\\\g<0>", part) for i, part in enumerate(parts))


def describe(app, pagename, templatename, context, doctree) -> None:
    """The description of a page, for search engines and previews: its first paragraph."""
    paragraph = next(doctree.findall(nodes.paragraph), None) if doctree is not None else None
    if paragraph is not None and "description" not in context.get("metatags", ""):
        text = " ".join(paragraph.astext().split())
        text = text if len(text) <= 160 else f"{text[:157].rpartition(' ')[0]} …"
        context["metatags"] = context.get("metatags", "") + f'<meta name="description" content="{html.escape(text)}">\n'


def setup(app) -> None:
    app.connect("html-page-context", describe)
    app.connect("autodoc-process-signature", without_fields)
    app.connect("autodoc-process-docstring", in_short, priority=50)
    app.connect("autodoc-process-docstring", real_arguments, priority=60)
    app.connect("autodoc-process-docstring", every_argument, priority=70)
    app.connect("autodoc-process-docstring", as_rest, priority=100)  # before napoleon
