"""What users do: fit, judge, report, compress and compare, in that order."""
