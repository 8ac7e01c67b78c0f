"""How the pages look, as far as it can be computed: contrast, no inline code, words."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import letheon.service
from letheon.ledger.requests.states import STATES
from letheon.service.pages._shared import FLASHES, STATE_LABELS, days_label, make_templates
from letheon.service.request_views import ACTIONS

HERE = Path(letheon.service.__file__).parent
TEMPLATES = sorted((HERE / "templates").glob("*.html"))


def tokens_of_colour() -> dict[str, tuple[str, str]]:
    text = (HERE / "static" / "desk.css").read_text()
    matches = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", text)
    return {name: (light, dark) for name, light, dark in matches}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


TONES = ("good", "warn", "bad", "info", "neutral")
GROUNDS = ("canvas", "surface", "raised", "sunken", "hover")
TEXTS = [
    *((text, ground) for text in ("ink", "soft") for ground in GROUNDS),
    *((tone, f"{tone}-wash") for tone in TONES),
    *((tone, ground) for tone in TONES for ground in ("surface", "canvas")),
    *(("ink", f"{tone}-wash") for tone in TONES),
    *(("accent", ground) for ground in ("canvas", "surface", "hover", "accent-wash")),
    ("accent-strong", "accent-wash"),
    *(("on-accent", ground) for ground in ("accent", "accent-strong")),
    *(("on-danger", ground) for ground in ("danger", "danger-strong")),
]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(theme: int) -> None:
    colours = tokens_of_colour()
    poor = {
        pair: round(contrast(colours[pair[0]][theme], colours[pair[1]][theme]), 2)
        for pair in TEXTS
        if contrast(colours[pair[0]][theme], colours[pair[1]][theme]) < 4.5
    }
    assert poor == {}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_edges_of_fields_and_bars_can_be_seen(theme: int) -> None:
    colours = tokens_of_colour()
    assert contrast(colours["edge"][theme], colours["surface"][theme]) >= 3
    for tone in ("good", "warn", "bad", "info"):
        assert contrast(colours[f"{tone}-fill"][theme], colours["sunken"][theme]) >= 2.3, tone


def test_black_on_white_is_the_known_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def forbidden_in(text: str) -> list[str]:
    """What the content policy of the desk would not run or show."""
    return re.findall(
        r"""\sstyle=|<style|<script(?![^>]*\ssrc=)|\son[a-z]+=|hx-on|javascript:|hx-vals=["']js:""",
        text,
    )


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_inline_script_or_style(path: Path) -> None:
    assert forbidden_in(path.read_text()) == []


@pytest.mark.parametrize(
    "planted",
    [
        '<p style="color: red">',
        "<script>alert(1)</script>",
        '<a onclick="x()">',
        "<style>p {}</style>",
        '<a href="javascript:x()">',
    ],
)
def test_planted_inline_code_is_found(planted: str) -> None:
    assert forbidden_in(planted)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_picture_that_a_template_names_exists(path: Path) -> None:
    ui = make_templates().env.globals["ui"]
    text = path.read_text()
    names = re.findall(r'(?:ui\.)?icon\("([a-z]+)"', text) + re.findall(r'picture="([a-z]+)"', text)
    empty = {name for name in names if not re.search("<(path|circle)", str(ui.icon(name)))}  # type: ignore[attr-defined]
    assert empty == set()


def test_every_state_has_words_and_every_action_a_message() -> None:
    assert set(STATE_LABELS) == set(STATES)
    assert set(ACTIONS) <= set(FLASHES)


@given(st.integers(-10_000, 10_000))
def test_days_left_say_the_number_and_a_word(days: int) -> None:
    label = days_label(days)
    assert label.text == "due today" if days == 0 else str(abs(days)) in label.text.replace(",", "")
    assert (label.tone == "bad") == (days <= 0)
    assert label.text.endswith("overdue") == (days < 0)
