"""The parts of results/summary.py: reading records, and making of them tables in files and paragraphs for the README.

Imports go one way: wording and markdown know of no other part; paper_tables, batch_as_memory and bench_tables use these
two; bench_headlines uses bench_tables as well; reading uses programs; readme_section stands alone; summary.py ties all
together.
"""
