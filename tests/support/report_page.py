"""Read a report's page."""

import html.parser
import re

from drfl.report import document, render_html

EVIL = '</script><script>alert(1)</script><!--<b onclick="x">\'&amp;%{y}{{ 6 * 7 }}{% x %}'


def rendered(records, title=None, failed=()):
    """Return the page on some runs."""
    return render_html(document(records, title, failed))


class Page(html.parser.HTMLParser):
    """The elements, text and styles of a page; unclosed elements are an error."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.words, self.ids, self.comments = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_comment(self, data):
        self.comments.append(data)

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def figures(self):
        """Return the descriptions of the figures."""
        return [attrs["aria-label"] for _, attrs in self.elements if attrs.get("class") == "plot"]
