"""What takes long and is not run at every change: benchmarks, faults put into the code, and chaos on real processes."""
