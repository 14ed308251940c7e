"""What every room needs: artifacts, columns, input files, errors, progress, executors, charts."""
