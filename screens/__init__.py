"""One module per screen. Textual lives here and only here."""
