"""Build the documentation as a site with search into `.cache/site`; a broken link fails the build.

    python tools/build_docs.py [--serve]

The pages are those of the repository: README.md, `docs/` and what they link. They are copied to `.cache/site-source`
first, because links lead out of `docs/` (to CONTRIBUTING.md, to results of benchmarks). The order of the navigation is
the order of the links in docs/index.md. The site needs no network: fonts and scripts are its own, and search works
from the file system.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / ".cache" / "site-source"
SITE: Final = ROOT / ".cache" / "site"
SHIM: Final = ROOT / "tools" / "site" / "iframe-worker.js"
"""The script by which search works from the file system. The theme would load it from the network."""
SHIM_ADDRESS: Final = "https://unpkg.com/iframe-worker/shim"
LOADED: Final = re.compile(
    r'<(?:script|img|link rel="stylesheet")[^>]* (?:src|href)="(https?://[^"]+)"'
)
INDEX: Final = "docs/index.md"
PAGES: Final = ("*.md", "docs/**", "benchmarks/*.md", "benchmarks/results/*.md")
SECTIONS: Final = ("Start", "Guides", "Reference", "Design", "Reports")
API_PAGE: Final = "docs/reference/docstrings.md"
API: Final = {
    "headrace": (
        "Broker", "Producer", "Consumer", "Admin", "ConsumerRecord", "RecordMetadata", "App", "Context",
        "Retry", "SeenTopic", "SeenFile",
    ),
    "headrace.pipelines": ("pipeline", "topic", "table", "for_each_batch"),
    "headrace.kinesis": ("kinesis", "AwsSettings", "Producer", "ProducerSettings"),
    "headrace.testing": ("Broker", "BrokerProcess", "Cluster", "FakeAws", "KafkaContainer", "context"),
}  # fmt: skip
"""Public names whose whole docstrings the site shows, by module."""
CONFIG: Final = """\
[project]
site_name = "Headrace"
site_description = "A Kafka-compatible streaming platform in Python"
docs_dir = "{source}"
site_dir = "{site}"
use_directory_urls = false
nav = {nav}

[project.theme]
language = "en"
font = false
features = ["content.code.copy", "navigation.sections", "navigation.top", "search.highlight"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"

[project.plugins.search]

[project.plugins.offline]

[project.plugins.mkdocstrings.handlers.python]
paths = ["{code}"]

[project.plugins.mkdocstrings.handlers.python.options]
docstring_style = "google"
heading_level = 3
show_root_heading = true
show_source = false
members_order = "source"
inherited_members = true

[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight.pygments_lang_class = true
pymdownx.inlinehilite = {{}}
pymdownx.superfences = {{}}

[project.validation]
invalid_links = true
invalid_link_anchors = true
"""


def copy_pages() -> None:
    """Copy the tracked pages and pictures into an empty SOURCE."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PAGES],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.split():
        target = SOURCE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    (SOURCE / API_PAGE).write_text("\n".join(api_page()))


def api_page() -> Iterator[str]:
    """Yield the lines of the page with the docstrings of public names."""
    yield "# Docstrings\n\nThe whole docstrings of the names that programs use most."
    for module, names in API.items():
        yield f"\n## {module}\n"
        yield from (f"::: {module}.{name}\n" for name in names)


def navigation() -> list[dict[str, object]]:
    """Return the site's navigation: sections in their order, pages as docs/index.md links them, then the others."""
    index = (ROOT / INDEX).read_text()
    linked = [f"docs/{link}" for link in re.findall(r"\]\(([\w/-]+\.md)", index)]
    found = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.glob("docs/**/*.md"))
    pages = dict.fromkeys([*linked, *found])
    sections: list[dict[str, object]] = [{"Headrace": "README.md"}, {"All pages": INDEX}]
    for section in SECTIONS:
        below = [page for page in pages if page.startswith(f"docs/{section.lower()}/")]
        sections.append({section: [{title(page): page} for page in below]})
    return sections


def title(page: str) -> str:
    """Return the first heading of a page."""
    text = (SOURCE / page).read_text()
    heading = re.search(r"^# (.*)$", text, re.MULTILINE)
    return heading[1] if heading else page


def make_local() -> list[str]:
    """Take the shim from the site itself; return the addresses of what pages still load from the network."""
    shutil.copyfile(SHIM, SITE / "assets" / SHIM.name)
    loaded: set[str] = set()
    for page in SITE.rglob("*.html"):
        up = "../" * (len(page.relative_to(SITE).parts) - 1)
        text = page.read_text().replace(SHIM_ADDRESS, f"{up}assets/{SHIM.name}")
        page.write_text(text)
        loaded.update(LOADED.findall(text))
    return sorted(loaded)


def inline(value: object) -> str:
    """Return a value as inline TOML."""
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key)} = {inline(each)}" for key, each in value.items())
            + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def main() -> int:
    """Build the site, or serve it with `--serve`."""
    copy_pages()
    config = ROOT / ".cache" / "zensical.toml"
    config.write_text(
        CONFIG.format(source=SOURCE.name, site=SITE.name, code="../src", nav=inline(navigation()))
    )
    zensical = Path(sys.executable).with_name("zensical")
    command = ["serve"] if "--serve" in sys.argv[1:] else ["build", "--clean", "--strict"]
    done = subprocess.run(
        [zensical, *command, "--config-file", config],
        cwd=config.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    if done.returncode or command == ["serve"]:
        return done.returncode
    if loaded := make_local():
        sys.exit(f"pages load from the network: {', '.join(loaded)}")
    print(f"the site is in {SITE.relative_to(ROOT)}: open {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
