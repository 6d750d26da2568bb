"""Operations on tables: reads, writes, row and schema changes, maintenance, tags, branches and clones."""
