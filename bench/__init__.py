"""Imports speckey before anything here imports thunder, which torch 2.13 alone does not let be imported."""

import speckey  # noqa: F401
