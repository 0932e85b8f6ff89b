"""Names that programs written for the 3.x API import from here."""
