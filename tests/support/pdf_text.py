"""The text of a PDF file that fpdf2 wrote: of each page what its fonts' tables make of the codes that are shown."""

import re
import zlib

OBJECT = re.compile(rb"\n(\d+) 0 obj\n(.*?)\nendobj", re.DOTALL)
STREAM = re.compile(rb"stream\n(.*)\nendstream", re.DOTALL)
SHOWN = re.compile(rb"/F(\d+) [\d.]+ Tf|\(((?:[^\\()]|\\.)*)\) Tj", re.DOTALL)
ESCAPED = {b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t", b"\\b": b"\b", b"\\f": b"\f"}


def contents(data):
    """The drawing commands of each page."""
    objects = {int(number): body for number, body in OBJECT.findall(data)}
    pages = [body for body in objects.values() if re.search(rb"/Type /Page\b(?!s)", body)]
    return [stream(objects[int(re.search(rb"/Contents (\d+)", page)[1])]) for page in pages]


def texts(data):
    """The text of each page, a line for each piece that was drawn."""
    objects = {int(number): body for number, body in OBJECT.findall(data)}
    fonts = {}
    for font, number in set(re.findall(rb"/F(\d+) (\d+) 0 R", data)):
        table = stream(objects[int(re.search(rb"/ToUnicode (\d+)", objects[int(number)])[1])])
        pairs = re.findall(rb"<([0-9A-F]{4})> <([0-9A-F]+)>\n", table.partition(b"beginbfchar")[2])
        fonts[font] = {int(code, 16): bytes.fromhex(text.decode()).decode("utf-16-be") for code, text in pairs}
    return ["\n".join(pieces(page, fonts)) for page in contents(data)]


def pieces(page, fonts):
    font = {}
    for chosen, text in SHOWN.findall(page):
        if chosen:
            font = fonts[chosen]
        else:
            plain = re.sub(rb"\\(.)", lambda m: ESCAPED.get(m[0], m[1]), text, flags=re.DOTALL)
            yield "".join(font[int.from_bytes(plain[k : k + 2])] for k in range(0, len(plain), 2))


def stream(body):
    found = STREAM.search(body)[1]
    return zlib.decompress(found) if b"/FlateDecode" in body else found
