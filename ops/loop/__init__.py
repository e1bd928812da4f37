"""A loop of foreign parts around a route: PostgreSQL, Debezium, a worker, the JDBC sink, PostgreSQL with pgvector."""
