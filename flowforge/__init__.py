"""FlowForge."""
