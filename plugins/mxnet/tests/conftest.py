"""The tests import what they share as a module."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
