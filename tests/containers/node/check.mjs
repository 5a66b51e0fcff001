// Check testcontainers for Node on an image: node check.mjs IMAGE
import assert from 'node:assert'
import { KafkaContainer } from '@testcontainers/kafka'
import { Kafka, logLevel } from 'kafkajs'

const container = await new KafkaContainer(process.argv[2]).withKraft().start()
try {
  const brokers = [`${container.getHost()}:${container.getMappedPort(9093)}`]
  const kafka = new Kafka({ brokers, logLevel: logLevel.ERROR })
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic: 'greetings', messages: [{ value: 'hello' }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: 'readers' })
  await consumer.connect()
  await consumer.subscribe({ topic: 'greetings', fromBeginning: true })
  const value = await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error('no record within 60 s')), 60_000).unref()
    consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) }).catch(reject)
  })
  assert.equal(value, 'hello')
  await consumer.disconnect()
  console.log('ok')
} finally {
  await container.stop()
}
