"""Faults: failing calls and disks, damaged directories, planted defects, lost connections."""
