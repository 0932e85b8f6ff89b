"""Makes ``toy_tuning`` importable, for the tests here and for the processes that they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
