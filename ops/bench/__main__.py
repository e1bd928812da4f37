"""`python -m penstock.ops.bench SUITE …` is `penstock bench SUITE …`."""

from penstock.ops.bench.subcommands import bench

if __name__ == "__main__":
    bench(prog_name="python -m penstock.ops.bench")
