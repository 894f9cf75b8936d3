"""A web page as Chromium has it: a tree of elements, with enough to look things up."""
import os
import subprocess
import sys
import tempfile
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "input", "link", "meta"}
SECONDS = 120  # Chromium starts in one or two; a loaded machine takes longer


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children = []  # elements and strings

    def get(self, name):
        return self.attributes.get(name)

    def text(self):
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)

    def all(self, tag=None, having=None, equal=None):
        """The elements below this one, in order: of a tag, having an attribute, equal to that."""
        found = []
        for child in self.children:
            if isinstance(child, str):
                continue
            if (tag in (None, child.tag) and (having is None or having in child.attributes) and
                    (equal is None or child.get(having) == equal)):
                found.append(child)
            found += child.all(tag, having, equal)
        return found

    def by_id(self, name):
        return self.all(having="id", equal=name)[0]


class _Builder(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.open = Element(None, {}, None)

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.children.append(element)
        if tag not in VOID:
            self.open = element

    def handle_endtag(self, tag):
        element = self.open
        while element.parent and element.tag != tag:
            element = element.parent
        if element.parent:
            self.open = element.parent

    def handle_data(self, data):
        self.open.children.append(data)


def opened(page, script=""):
    """The page in a window of 1000 pixels, after its own script and `script`."""
    if script:
        page = page.replace("</body>", f"<script>{{{script}}}</script></body>")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "page.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
        # It has to run as root, and in containers with little /dev/shm.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", f"--user-data-dir={folder}/profile", "--window-size=1000,800"]
        try:
            run = subprocess.run(["chromium", *options, "--dump-dom", f"file://{path}"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
                                 encoding="utf-8", timeout=SECONDS,
                                 env={**os.environ, "HOME": folder})
        except FileNotFoundError:
            sys.exit("expected the program chromium, of the Debian package of that name")
    builder = _Builder()
    builder.feed(run.stdout)
    builder.close()
    return builder.root
