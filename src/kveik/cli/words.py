"""How commands word what they say of themselves."""


def sentence(text: str) -> str:
    """One line of help as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}."
