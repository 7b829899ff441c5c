"""The contract of a method, public, so that authors of plug-ins can run it."""

from zoo.testing.contract import CHECKS, CheckResult, run_check, run_checks

__all__ = ["CHECKS", "CheckResult", "run_check", "run_checks"]
