//! Only tests across the programs: see `tests/`.
