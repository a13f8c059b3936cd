"""Whether a colour can be read on light and on dark pages: the contrast of two colours, as WCAG defines it."""

from __future__ import annotations

PAGES_LIGHT, PAGES_DARK = "#ffffff", "#131416"  # of GitHub and of the site; GitHub's own dark is darker
CONTRAST_MIN = 3.0  # of drawings and their large letters


def light_of(colour: str) -> float:
    """The relative luminance of a colour, such as #ff8000."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours: 1 for the same colour, 21 for black on white."""
    darker, lighter = sorted((light_of(one), light_of(other)))
    return (lighter + 0.05) / (darker + 0.05)


def is_readable(colour: str) -> bool:
    """Whether a colour has enough contrast on a light page and on a dark one."""
    return all(contrast(colour, page) >= CONTRAST_MIN for page in (PAGES_LIGHT, PAGES_DARK))
