#!/usr/bin/env python3
"""Does to index.html what trunk does, for a build that has only cargo and wasm-bindgen.

  assemble_web.py INDEX.html OUT      OUT already holds NAME.js and NAME_bg.wasm of every program

Understands the <link data-trunk> kinds that the page uses: rust (main and worker), css, icon, copy-file, copy-dir.
An unknown kind is an error, so that the two builds cannot drift apart silently.
"""
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path


class Link(HTMLParser):
    def __init__(self, tag):
        super().__init__()
        self.values = {}
        self.feed(tag)

    def handle_starttag(self, tag, attrs):
        self.values = {k: v or '' for k, v in attrs}

    handle_startendtag = handle_starttag


def replacement(values, source, out):
    kind = values.get('rel', '')
    if kind == 'rust':
        name = values['data-bin']
        if not (out / f'{name}.js').is_file():
            raise SystemExit(f'assemble_web.py: {out}/{name}.js is missing; run wasm-bindgen first')
        if values.get('data-type', 'main') == 'worker':
            # The page starts NAME_loader.js as a module worker.
            (out / f'{name}_loader.js').write_text(f"import init from './{name}.js';\nawait init();\n", encoding='utf-8')
            return ''
        return f'<script type="module">import init from "./{name}.js"; await init();</script>'
    target = source.parent / values.get('href', '')
    if kind in ('css', 'icon', 'copy-file'):
        folder = out / values.get('data-target-path', '')
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, folder / target.name)
        if kind == 'css':
            return f'<link rel="stylesheet" href="./{target.name}">'
        return f'<link rel="icon" href="./{target.name}">' if kind == 'icon' else ''
    if kind == 'copy-dir':
        shutil.copytree(target, out / values.get('data-target-path', target.name), dirs_exist_ok=True)
        return ''
    raise SystemExit(f'assemble_web.py: {source}: <link data-trunk rel="{kind}"> is not known here')


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    html = source.read_text(encoding='utf-8')
    html = re.sub(r'<link\b[^>]*\bdata-trunk\b[^>]*>', lambda m: replacement(Link(m[0]).values, source, out), html)
    (out / 'index.html').write_text(html, encoding='utf-8')


if __name__ == '__main__':
    main()
