"""Makes ``toy_configs`` importable for the tests here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# Imported once more to look for doctests it would register its classes twice.
collect_ignore = ["toy_configs.py"]
