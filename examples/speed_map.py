"""The mean speed in each square of a city's map, every five seconds, back into a stream. First run:

    anabranch stream create city/vehicles --storage 1
    anabranch stream create city/speeds --storage 1
    anabranch mock vehicles --seconds 15 | anabranch publish city/vehicles --key-field vehicle

It joins the network that `anabranch up` runs.
"""

from pyspark.sql import functions as sf

from anabranch.spark.session import open_session

spark = open_session()
reading = {"subscribe": "city/vehicles", "startingOffsets": "earliest"}
fields = "lat DOUBLE, lon DOUBLE, speed_ms DOUBLE"
vehicles = spark.readStream.format("anabranch").options(valueSchema=fields, **reading).load()
square = sf.concat_ws(" ", sf.round("value.lat", 2), sf.round("value.lon", 2))
speeds = (
    vehicles.withWatermark("timestamp", "1 second")
    .groupBy(square.alias("key"), sf.window("timestamp", "5 seconds"))
    .agg(sf.avg("value.speed_ms").alias("metres_per_s"))
    .selectExpr("key", "to_json(struct(key, window, metres_per_s)) AS value")
)
writing = {"stream": "city/speeds", "contentType": "json", "checkpointLocation": "speeds.state"}
query = speeds.writeStream.format("anabranch").options(**writing)
query.trigger(availableNow=True).start().awaitTermination()
sent = spark.read.format("anabranch").option("subscribe", "city/speeds").load()
print(sent.count(), "mean speeds, the first:", bytes(sent.first().value).decode())
