"""What mkdocs needs beyond its settings: files that pages show from outside of docs/ (figures and results)."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\]\(\.\./((?!\.\.)[^)#\s]+)\)")


def on_files(files, config):
    """Add every file outside of docs/ that a page of its top level links to."""
    for page in sorted(Path(config["docs_dir"]).glob("*.md")):
        for path in OUTSIDE.findall(page.read_text(encoding="utf-8")):
            if (ROOT / path).is_file() and files.get_file_from_path(path) is None:
                files.append(File(path, str(ROOT), config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point such links to the copies; those to files that do not exist stay, and mkdocs refuses them."""
    if "/" in page.file.src_uri:
        return markdown
    return OUTSIDE.sub(lambda m: f"]({m[1]})" if (ROOT / m[1]).is_file() else m[0], markdown)
