# Every routine command. `just --list` shows them.

# What only processes of several machines need.
with-mpi := "ms-dist/mpi,ms-train/mpi,ms-preprocess/mpi,ascend-rs/mpi"

# Format, clippy, repository rules, tests: what must be green before a change is done.
check: fmt-check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    cargo xtask tidy
    just test

# The tests, as the README runs them.
test:
    cargo test --workspace --locked

# What goes wrong around a program: malformed files, every number, text and field, full disk, closed pipes, two writers,
# kills, little memory (at most ten minutes; the full disk needs the right to mount one).
adversary:
    MS_PATIENCE=10 cargo test --locked -p end-to-end --test environment_faults --test numbers --test refusals -- --nocapture
    cargo test --locked -p ms-train --test all -- interruptions:: refusals:: memory_check::
    cargo test --locked -p ms-preprocess --test kinds

# Every choice of ranks up to eight for five kinds of models: gradients, losses and norms as on one rank; what was found goes
# into docs/reference/parity.md.
parity SEED="1":
    MS_PARITY=all MS_PARITY_SEED={{SEED}} MS_PARITY_PAGE={{justfile_directory()}}/docs/reference/parity.md \
      cargo test -p ms-trainer --test all --locked -- --nocapture --test-threads 1 matrix:: faults:: inconsistent_inputs::

# Ranks as processes: rows drawn as the matrix draws them (MS_PARITY_SEED draws others), checkpoints, failing and killed ranks
# under mpirun, also over TCP between two network namespaces where the machine allows them. Needs Open MPI, its headers and
# libclang (Debian: openmpi-bin libopenmpi-dev libclang-dev).
mpi:
    mpirun --version
    cargo test --workspace --features {{with-mpi}} --locked --test mpi --test ranks -- --nocapture
    cargo test --workspace --features {{with-mpi}} --locked --test emulator mpi

# The kernels' tests on aarch64, performed by qemu. Needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
aarch64:
    rustup target add aarch64-unknown-linux-gnu
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu" \
    MS_REQUIRE_ISA=neonbf16 \
      cargo test --locked -p ms-kernels --lib --target aarch64-unknown-linux-gnu

# Format the sources.
fmt:
    cargo fmt --all

# Is everything formatted?
fmt-check:
    cargo fmt --all --check

# A small model's whole life, on this machine's own text.
quickstart *ARGS:
    sh examples/quickstart.sh {{ARGS}}

# Release programs into DIR/bin, completions and man pages into DIR/share (default ~/.local).
install DIR="$HOME/.local":
    sh examples/install.sh {{DIR}}

# Matrix products against the measured peak.
bench-matmul *ARGS:
    cargo bench -p ms-kernels --bench matmul -- {{ARGS}}

# Attention against the measured peak.
bench-attention *ARGS:
    cargo bench -p ms-kernels --bench attention -- {{ARGS}}

# Norms, activations, loss and optimizer against the measured bandwidth.
bench-fused *ARGS:
    cargo bench -p ms-kernels --bench fused -- {{ARGS}}

# Recurrent mixers against the measured peak.
bench-recurrent *ARGS:
    cargo bench -p ms-kernels --bench recurrent -- {{ARGS}}

# Are kernels slower than the committed shares of their peaks, beyond the noise stated there? (`--record` commits new ones)
bench-guard *ARGS:
    python3 docs/benchmarks/guard.py {{ARGS}}

# Whole training steps (25 M, 110 M, eight experts; `--threads=2`): tokens per second and MFU.
bench-train *ARGS:
    cargo bench -p ms-trainer --bench step -- {{ARGS}}

# How the time of a step grows with tokens, layers, width, experts and ranks, compared with the amount of work.
bench-scaling *ARGS:
    cargo bench -p ms-trainer --bench scaling -- {{ARGS}}

# Reading a prompt and continuing it on a model of random weights: tokens per second and share of the bandwidth.
bench-infer *ARGS:
    cargo bench -p ms-generate --bench infer -- {{ARGS}}

# Preprocessing against its own encoder and the reference engine, on real text.
bench-encode *ARGS:
    cargo bench -p ms-data --bench preprocess -- {{ARGS}}

# A 1.9 GB model to Megatron files (tp 4, pp 2) and back, against `cp -r`: seconds and private memory.
bench-convert *ARGS:
    sh examples/bench-convert.sh {{ARGS}}

# Merging, packing and reading against copying the same bytes; knapsack and sample index of large sets.
bench-data *ARGS:
    cargo bench -p ms-data --bench data -- {{ARGS}}

# Regenerate the table of upstream flags from the reference tables in ../shared.
flags:
    python3 xtask/flags/make_flag_table.py ../shared/spec

# Regenerate the generated reference pages.
docs:
    cargo xtask docs

# Licences, sources and duplicates of dependencies (needs cargo-deny).
deny:
    cargo deny check bans licenses sources

# Fuzz one parser for some seconds (needs cargo-fuzz and a nightly compiler): `just fuzz indexed_dataset 600`; a single
# style of JSON records: `MS_FUZZ_STYLE=alpaca just fuzz styles 600`. `fuzz/README.md` lists the targets and what they cover.
fuzz TARGET SECONDS="60":
    cargo +nightly fuzz run {{TARGET}} -- -max_total_time={{SECONDS}} -rss_limit_mb=2048 -timeout=10
