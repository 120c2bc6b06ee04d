// Runs Streamr's tracker or nodes for streamr.py: commands come as lines on standard input, answers
// go as lines to standard output. It ends when standard input does.
//
//   tracker PORT                 -> tracker PORT
//   clock                        -> clock NANOSECONDS
//   join INDEX TRACKER_PORT      -> joined INDEX
//   publish INDEX SENT PHASE
// and on its own, as many in one write as there are:
//                              -> got INDEX SENT PHASE RECEIVED

import { createRequire } from 'node:module'
import path from 'node:path'
import { createInterface } from 'node:readline'

const require = createRequire(path.join(process.env.ANABRANCH_STREAMR, 'driver.js'))
const CONTENT = 308 // bytes of a message's content, which has to be JSON
const TRACKER = 'flood-tracker'
const PUBLISHER = '0x' + '1'.repeat(40)
const PATIENCE_MS = 60_000

const nodes = new Map()
let answers = []
let last = null // the reference of the last message

function answer(line) {
    if (answers.length === 0) {
        setImmediate(() => {
            process.stdout.write(answers.join('\n') + '\n')
            answers = []
        })
    }
    answers.push(line)
}

async function startTracker(port) {
    await require('@streamr/network-tracker').startTracker({
        listen: { hostname: '127.0.0.1', port: Number(port) },
        id: TRACKER,
        attachHttpEndpoints: false,
        trackerPingInterval: PATIENCE_MS
    })
    answer(`tracker ${port}`)
}

function part() {
    const { toStreamID, toStreamPartID } = require('@streamr/protocol')
    return toStreamPartID(toStreamID('flood'), 0)
}

async function join(index, port) {
    const { createNetworkNode, TEST_CONFIG } = require('@streamr/network-node')
    const { MetricsContext } = require('@streamr/utils')
    const node = createNetworkNode({
        ...TEST_CONFIG, // the settings that the package exports; no STUN servers
        id: `0x${index.padStart(40, '0')}`,
        trackers: [{ id: TRACKER, http: `http://127.0.0.1:${port}`, ws: `ws://127.0.0.1:${port}` }],
        metricsContext: new MetricsContext()
    })
    nodes.set(index, node)
    if (index !== '0') {
        node.addMessageListener((message) => {
            const received = process.hrtime.bigint()
            const [, sent, phase] = message.getSerializedContent().split(' ', 3)
            answer(`got ${index} ${sent} ${phase} ${received}`)
        })
    }
    node.start()
    await node.subscribeAndWaitForJoin(part(), PATIENCE_MS)
    answer(`joined ${index}`)
}

function publish(index, sent, phase) {
    const { MessageID, MessageRef, StreamMessage, toStreamID } = require('@streamr/protocol')
    const now = Math.max(Date.now(), last?.timestamp ?? 0)
    const sequence = last?.timestamp === now ? last.sequenceNumber + 1 : 0
    nodes.get(index).publish(new StreamMessage({
        messageId: new MessageID(toStreamID('flood'), 0, now, sequence, PUBLISHER, 'flood'),
        prevMsgRef: last,
        content: `" ${sent} ${phase} `.padEnd(CONTENT - 1, 'x') + '"',
        signature: ''
    }))
    last = new MessageRef(now, sequence)
}

const commands = {
    tracker: startTracker,
    clock: () => answer(`clock ${process.hrtime.bigint()}`),
    join,
    publish
}
createInterface({ input: process.stdin })
    .on('line', (line) => {
        const [command, ...words] = line.split(' ')
        commands[command](...words)
    })
    .on('close', () => process.exit(0))
