"""Writing from threads of one's own: Spark looks a source in Python up in the session that is active in the thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_session(session: SparkSession) -> None:
    """Make a session the active one of the calling thread.

    Spark's main thread has one, and a thread that was started has none: there `df.write.format("semel").save()` and
    `writeStream.start()` fail with DATA_SOURCE_NOT_FOUND (ClassNotFoundException: semel.DefaultSource), as with any
    source in Python. Call this first in the thread.

        def copy():
            semel.spark.use_session(spark)
            frame.write.format("semel").options(**options).mode("append").save()
    """
    java: Any = getattr(session, "_jvm", None)
    if java is None:
        return  # a session of Spark Connect, which goes with each of its calls
    found: Any = session
    type(found)._get_j_spark_session_class(java).setActiveSession(found._jsparkSession)
