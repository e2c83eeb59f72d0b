"""Tables in Markdown."""

from training.reports.markdown import markdown_table


def test_columns_line_up():
    """The first to the left, the others to the right, in the source as on the page."""
    table = markdown_table([("", "F1"), ("names in text", "66.4"), ("ä", "7")])

    assert table == (
        "|               |   F1 |\n| ------------- | ---: |\n| names in text | 66.4 |\n| ä             |    7 |"
    )
