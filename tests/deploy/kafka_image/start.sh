#!/bin/sh
# Kafka's own program turns KAFKA_… variables into server.properties and formats the storage, as in its image.
set -eu
java kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \
  --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config
exec java -Xmx320m kafka.Kafka /opt/kafka/config/server.properties
