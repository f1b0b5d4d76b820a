"""What docs/performance.md says, measured: `python -m benchmarks [NAME …]`."""
