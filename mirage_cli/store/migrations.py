"""MIGRATIONS: how the database's tables came to be, step by step. `store` says what each table holds."""

from __future__ import annotations

APPLICATION_ID = 0x4D495247
"""Marks the file as ours ("MIRG"), so that another program's database is refused, not migrated."""
MIGRATIONS: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (
        1,
        "first tables",
        (
            "CREATE TABLE specs (program_hash TEXT PRIMARY KEY, name TEXT NOT NULL, text TEXT NOT NULL)",
            """CREATE TABLE keys (
                id TEXT PRIMARY KEY, program_hash TEXT NOT NULL, dims TEXT NOT NULL, dtype TEXT NOT NULL,
                gpu TEXT NOT NULL, driver TEXT NOT NULL, torch TEXT NOT NULL, triton TEXT NOT NULL,
                mirage TEXT NOT NULL)""",
            "CREATE INDEX keys_program ON keys (program_hash, dims, dtype)",
            """CREATE TABLE searches (
                key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE, seed INTEGER NOT NULL,
                results TEXT NOT NULL, stats TEXT NOT NULL, stopped TEXT NOT NULL, seconds REAL NOT NULL,
                at TEXT NOT NULL, PRIMARY KEY (key, seed))""",
            """CREATE TABLE mugraphs (
                key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE, id TEXT NOT NULL, text TEXT NOT NULL,
                rank INTEGER NOT NULL, kernels INTEGER NOT NULL, predicted_us REAL, verification TEXT NOT NULL,
                PRIMARY KEY (key, id))""",
            "CREATE INDEX mugraphs_id ON mugraphs (id)",
            "CREATE TABLE schedules (id TEXT PRIMARY KEY, json TEXT NOT NULL)",
            """CREATE TABLE kernels (
                key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE, id TEXT NOT NULL, mugraph TEXT NOT NULL,
                schedule TEXT NOT NULL REFERENCES schedules (id), source TEXT NOT NULL, PRIMARY KEY (key, id))""",
            """CREATE TABLE measurements (
                id INTEGER PRIMARY KEY, key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE,
                mugraph TEXT NOT NULL, kernel TEXT, schedule TEXT NOT NULL REFERENCES schedules (id),
                samples_us TEXT NOT NULL, median_us REAL, spread_us REAL, cold INTEGER NOT NULL, method TEXT NOT NULL,
                accuracy TEXT NOT NULL, failure TEXT, at TEXT NOT NULL)""",
            "CREATE INDEX measurements_of ON measurements (key, mugraph)",
            """CREATE TABLE results (
                key TEXT PRIMARY KEY REFERENCES keys (id) ON DELETE CASCADE, mugraph TEXT NOT NULL,
                status TEXT NOT NULL, time_us REAL, schedule TEXT NOT NULL REFERENCES schedules (id),
                kernel TEXT NOT NULL, document TEXT NOT NULL, at TEXT NOT NULL)""",
        ),
    ),
    (
        2,
        "timings of calls that stand alone",
        ("ALTER TABLE measurements ADD COLUMN alone_samples_us TEXT NOT NULL DEFAULT '[]'",),
    ),
    (
        3,
        "kernels beside Inductor's code",
        (
            """CREATE TABLE beside (
                key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE, kernel TEXT NOT NULL,
                kernel_us REAL NOT NULL, inductor_us REAL NOT NULL, at TEXT NOT NULL, PRIMARY KEY (key, kernel))""",
        ),
    ),
    (4, "no record of each search: nothing read it, and results say how they were found", ("DROP TABLE searches",)),
    (
        5,
        "programs for which no kernel was found",
        (
            """CREATE TABLE tried (
                key TEXT PRIMARY KEY REFERENCES keys (id) ON DELETE CASCADE, budget_s REAL NOT NULL,
                problem TEXT NOT NULL, at TEXT NOT NULL)""",
        ),
    ),
    (
        6,
        "no time beside Inductor's that may be eager PyTorch's: the backend took some for a kernel's",
        ("DELETE FROM beside",),
    ),
)
"""Number, purpose, and statements. Applied in order, each once; never edited after a release."""
