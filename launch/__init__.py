"""Run files: one per task, read by `apex-acer train NAME`."""
