"""``python -m speckey`` runs the demo."""

import sys

from speckey.demo import main

sys.exit(main())
