"""The suite itself: its tiers, the promises that tests keep, and suites of users."""
