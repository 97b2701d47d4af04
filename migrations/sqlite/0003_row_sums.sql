-- Schema 3: sums for rows that no chain covers.
--
-- Stored answers and rows of the house follow from nothing else in the file, so only a sum of their own can
-- tell that a bit of them was changed. NULL in rows of before schema 3. See loopd/store/sums.py.
-- The runner wraps this file in a transaction and sets user_version.

ALTER TABLE idempotency ADD COLUMN sum BLOB CHECK (sum IS NULL OR length(sum) = 8);
ALTER TABLE house ADD COLUMN sum BLOB CHECK (sum IS NULL OR length(sum) = 8);
