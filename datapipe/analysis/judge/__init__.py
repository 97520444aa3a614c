"""Judge what was measured: the steady state, the verdict, and the stage at fault. Pure: nothing is measured here."""
