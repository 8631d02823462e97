"""Read a page as a browser does."""

from html.parser import HTMLParser

VOID = ("meta", "br")  # elements that never have content


class Reader(HTMLParser):
    """Collects the text of a page, its spaces and line breaks as one space, and checks that each element is closed in turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += " ".join(data.split()) + "\n"
