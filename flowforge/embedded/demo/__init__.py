"""The work of `flowforge demo`: survey a real source tree, report it, and prove the figures by counting again."""
