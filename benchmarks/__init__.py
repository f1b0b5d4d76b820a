"""What README and docs/performance.md say about speed, measured: `python -m benchmarks [NAME …]`."""
