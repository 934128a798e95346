"""The quality suite: bundled questions, answers judged by plain rules, a verdict with stated thresholds. Works against any base URL."""
