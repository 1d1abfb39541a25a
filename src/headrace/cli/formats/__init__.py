"""The text formats in which `consume` writes records and `produce` reads them."""
