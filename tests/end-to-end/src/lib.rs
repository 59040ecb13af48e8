//! Nothing but tests across the programs: see `tests/`.
