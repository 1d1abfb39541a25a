// A member of a consumer group, written from docs/reference/client-protocol.md alone; numbers in brackets are sections.
// Prints events and records as JSON lines. After SIGTERM it commits, leaves the group and ends.
//   node consumer.js --bootstrap 127.0.0.1:9092 --group billing --topics orders,payments
'use strict'
const net = require('node:net')
const options = { bootstrap: '127.0.0.1:9092', group: 'node', topics: '', 'client-id': 'node', 'heartbeat-ms': 3000,
  'session-timeout-ms': 45000, 'rebalance-timeout-ms': 300000, 'max-wait-ms': 500, 'max-bytes': 1 << 20 }
for (let i = 2; i < process.argv.length; i += 2) options[process.argv[i].slice(2)] = process.argv[i + 1]
const TOPICS = options.topics.split(','), CLIENT = options['client-id'], ANSWER_MS = 30000
const JOIN_MS = Number(options['rebalance-timeout-ms']) + 5000
const emit = (event, rest) => console.log(JSON.stringify({ event, at_ns: Number(process.hrtime.bigint()), ...rest }))
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
class Failure extends Error {} // what no retry can help
const pass = (error) => { if (error instanceof Failure) throw error }
const must = (code, what) => { if (code) throw new Failure(`${what}: error ${code}`) }

// [2] A type is the name of a number or of what has a length, [element], [element, type of the count], { field: type }.
const [i8, i16, i32, i64, string] = ['int8', 'int16', 'int32', 'int64', 'string']
const NUMBERS = { int8: [1, 'Int8'], int16: [2, 'Int16BE'], int32: [4, 'Int32BE'], int64: [8, 'BigInt64BE'] }
const LENGTHS = { string: i16, bytes: i32, varbytes: 'varint' }
function encode(type, value) { // numbers, strings and bytes that are left out are -1 and null
  if (Array.isArray(type)) return Buffer.concat([encode(i32, value.length), ...value.map((v) => encode(type[0], v))])
  if (typeof type === 'object') return Buffer.concat(Object.entries(type).map(([name, t]) => encode(t, value[name])))
  if (type in LENGTHS) {
    const data = Buffer.from(value ?? '')
    return Buffer.concat([encode(LENGTHS[type], value == null ? -1 : data.length), data])
  }
  const data = Buffer.alloc(NUMBERS[type][0])
  data['write' + NUMBERS[type][1]](type === i64 ? BigInt(value ?? -1) : (value ?? -1))
  return data
}
function read(type, from) { // from: { data, at }
  if (Array.isArray(type)) return Array.from({ length: read(type[1] ?? i32, from) }, () => read(type[0], from))
  if (typeof type === 'object') return Object.fromEntries(Object.entries(type).map(([n, t]) => [n, read(t, from)]))
  if (type === 'varint') { // [8] up to 64 bits
    let u = 0n
    for (let byte = 128, shift = 0n; byte & 128; shift += 7n) u |= BigInt((byte = from.data[from.at++]) & 127) << shift
    return Number((u >> 1n) ^ -(u & 1n))
  }
  const length = type in LENGTHS ? read(LENGTHS[type], from) : NUMBERS[type][0]
  const data = length < 0 ? null : from.data.subarray(from.at, (from.at += length))
  if (from.at > from.data.length) throw new Failure('a message ends inside a field')
  if (type in NUMBERS) return Number(data['read' + NUMBERS[type][1]]()) // offsets and times fit into 53 bits
  return type === 'string' && data ? data.toString() : data
}

// [3]-[7] API: key, version, request, response.
const MEMBER = { group: string, generation: i32, member: string, instance: string }
const perTopic = (partition) => [{ topic: string, partitions: [partition] }]
const SUBSCRIPTION = { version: i16, topics: [string], user_data: 'bytes' }
const ASSIGNMENT = { version: i16, assigned: perTopic(i32), user_data: 'bytes' }
const TOP = { throttle: i32, error: i16 } // of most responses
const API = {
  ApiVersions: [18, 0, {}, { error: i16, apis: [{ key: i16, min: i16, max: i16 }] }],
  Metadata: [3, 8, { topics: [string], create: i8, cluster_operations: i8, topic_operations: i8 }, {
    throttle: i32, brokers: [{ id: i32, host: string, port: i32, rack: string }], cluster: string, controller: i32,
    topics: [{ error: i16, name: string, internal: i8, partitions: [{ error: i16, index: i32, leader: i32, epoch: i32,
      replicas: [i32], isr: [i32], offline: [i32] }], operations: i32 }], operations: i32 }],
  FindCoordinator: [10, 2, { key: string, type: i8 }, { ...TOP, message: string, id: i32, host: string, port: i32 }],
  JoinGroup: [11, 5, { group: string, session: i32, rebalance: i32, member: string, instance: string, type: string,
    protocols: [{ name: string, metadata: 'bytes' }] }, { ...TOP, generation: i32, protocol: string, leader: string,
    member: string, members: [{ id: string, instance: string, metadata: 'bytes' }] }],
  SyncGroup: [14, 3, { ...MEMBER, shares: [{ id: string, assignment: 'bytes' }] }, { ...TOP, assignment: 'bytes' }],
  Heartbeat: [12, 3, MEMBER, TOP],
  LeaveGroup: [13, 3, { group: string, members: [{ id: string, instance: string }] },
    { ...TOP, members: [{ id: string, instance: string, error: i16 }] }],
  OffsetFetch: [9, 5, { group: string, topics: perTopic(i32) }, { throttle: i32,
    topics: perTopic({ partition: i32, offset: i64, epoch: i32, metadata: string, error: i16 }), error: i16 }],
  OffsetCommit: [8, 7, { ...MEMBER, topics: perTopic({ partition: i32, offset: i64, epoch: i32, metadata: string }) },
    { throttle: i32, topics: perTopic({ partition: i32, error: i16 }) }],
  ListOffsets: [2, 5, { replica: i32, isolation: i8, topics: perTopic({ partition: i32, epoch: i32, timestamp: i64 }) },
    { throttle: i32, topics: perTopic({ partition: i32, error: i16, timestamp: i64, offset: i64, epoch: i32 }) }],
  Fetch: [1, 11, { replica: i32, wait: i32, min_bytes: i32, max_bytes: i32, isolation: i8, session: i32, round: i32,
    topics: perTopic({ partition: i32, epoch: i32, offset: i64, log_start: i64, max_bytes: i32 }),
    forgotten: perTopic(i32), rack: string }, { ...TOP, session: i32, topics: perTopic({ partition: i32, error: i16,
    end: i64, stable: i64, start: i64, aborted: [{ producer: i64, first: i64 }], replica: i32, records: 'bytes' }) }],
}

// [2] Frames.
function open(address) {
  const waiting = [], connection = { ask, closed: false }, colon = address.lastIndexOf(':')
  let received = Buffer.alloc(0), asked = 0
  const socket = net.connect({ host: address.slice(0, colon), port: address.slice(colon + 1), noDelay: true })
  socket.on('error', close).on('close', close).on('data', (data) => {
    received = Buffer.concat([received, data])
    while (received.length >= 4 && received.length >= 4 + received.readInt32BE()) {
      const frame = { data: received.subarray(4, 4 + received.readInt32BE()), at: 0 }, first = waiting.shift()
      received = received.subarray(4 + frame.data.length)
      if (first?.id !== read(i32, frame)) return close()
      first.resolve(frame)
    }
  })
  function close() {
    connection.closed = true
    socket.destroy()
    for (const { reject } of waiting.splice(0)) reject(new Error('the connection broke'))
  }
  async function ask(api, request, timeout = ANSWER_MS) {
    const [key, version, asking, answer] = API[api], id = ++asked
    const header = encode({ key: i16, version: i16, id: i32, client: string }, { key, version, id, client: CLIENT })
    socket.write(encode('bytes', Buffer.concat([header, encode(asking, request)])))
    setTimeout(() => { if (waiting.some((each) => each.id === id)) close() }, timeout)
    return read(answer, await new Promise((resolve, reject) => waiting.push({ id, resolve, reject })))
  }
  return connection
}
const connections = new Map() // a Fetch must not hold up a heartbeat: one for each use
function connect(address, use) {
  const key = `${use} ${address}`
  if (connections.get(key)?.closed ?? true) connections.set(key, open(address))
  return connections.get(key)
}
async function retry(attempt) { // after a broken connection, or when the attempt says undefined: a pause, and again
  for (let pause = 100; ; pause = Math.min(2 * pause, 1000)) {
    const result = await attempt().catch(pass)
    if (result !== undefined) return result
    await sleep(pause * (0.8 + 0.4 * Math.random()))
  }
}

// [3], [4] The cluster.
const leaders = new Map() // topic -> partition -> address, undefined where there is no leader
let brokers = new Map(), turn = 0, coordinator // addresses
const askAny = (api, request) => retry(async () =>
  connect([options.bootstrap, ...brokers.values()][turn++ % (brokers.size + 1)], 'any').ask(api, request))
async function checkVersions() {
  const { apis } = await askAny('ApiVersions', {})
  const served = ([key, version]) => apis.some((each) => each.key === key && each.min <= version && version <= each.max)
  for (const name in API) if (!served(API[name])) throw new Failure(`the broker has no ${name} ${API[name][1]}`)
}
async function refresh(topics) {
  const answer = await askAny('Metadata', { topics, create: 0, cluster_operations: 0, topic_operations: 0 })
  brokers = new Map(answer.brokers.map(({ id, host, port }) => [id, `${host}:${port}`]))
  for (const { error, name, partitions } of answer.topics) {
    if (error !== 3 && error !== 5) must(error, `topic ${name}`)
    leaders.set(name, new Map(partitions.map(({ index, leader }) => [index, brokers.get(leader)])))
  }
}
const askCoordinator = (api, request, errorOf = (answer) => answer.error, timeout = ANSWER_MS) => retry(async () => {
  if (!coordinator) {
    const { error, host, port } = await askAny('FindCoordinator', { key: options.group, type: 0 })
    if (error === 14 || error === 15) return undefined
    must(error, 'FindCoordinator')
    coordinator = `${host}:${port}`
  }
  const asking = connect(coordinator, 'group').ask(api, request, timeout)
  const answer = await asking.catch((error) => { coordinator = undefined; throw error })
  if ([15, 16].includes(errorOf(answer))) coordinator = undefined
  return [7, 14, 15, 16].includes(errorOf(answer)) ? undefined : answer
})

// [5] The group.
let me = { group: options.group, generation: -1, member: '' }, divided // when this member led
let state = 'joining', outcome = '', stopping = false // joining or reading; '', 'rejoin' or 'lost'
function check(error) { // [10] what an answer says of the membership
  if (error === 25) me.member = ''
  if (error === 22 || error === 25) outcome = 'lost'
  else if (error === 27) outcome ||= 'rejoin'
  else must(error, 'the coordinator refuses')
  return !error
}
async function join() { // returns the assignment, or undefined: try again
  const metadata = encode(SUBSCRIPTION, { version: 0, topics: TOPICS })
  const joined = await askCoordinator('JoinGroup', { ...me, session: options['session-timeout-ms'], type: 'consumer',
    rebalance: JOIN_MS - 5000, protocols: [{ name: 'range', metadata }] }, undefined, JOIN_MS)
  if (joined.error === 79) { me.member = joined.member; return join() }
  if (!check(joined.error)) return undefined
  me = { group: options.group, generation: joined.generation, member: joined.member }
  const shares = joined.leader === me.member ? await divide(joined.members) : []
  const synced = await askCoordinator('SyncGroup', { ...me, shares }, undefined, JOIN_MS)
  if (!check(synced.error)) return undefined
  return synced.assignment.length ? read(ASSIGNMENT, { data: synced.assignment, at: 0 }).assigned : []
}
const count = (topic) => leaders.get(topic)?.size ?? 0
async function divide(members) { // range
  const wanted = new Map(members.map(({ id, metadata }) => [id, read(SUBSCRIPTION, { data: metadata, at: 0 }).topics]))
  const topics = [...new Set([...wanted.values()].flat())].sort(), shares = new Map(members.map(({ id }) => [id, []]))
  await refresh(topics)
  for (const topic of topics) {
    const takers = [...wanted.keys()].filter((id) => wanted.get(id).includes(topic)).sort()
    const all = [...Array(count(topic)).keys()], rest = all.length % takers.length
    const share = Math.floor(all.length / takers.length)
    takers.forEach((id, i) => shares.get(id).push({ topic, partitions: all.splice(0, share + (i < rest ? 1 : 0)) }))
  }
  divided = { topics, counts: topics.map(count).join() }
  return [...shares].map(([id, assigned]) => ({ id, assignment: encode(ASSIGNMENT, { version: 0, assigned }) }))
}
async function beat() {
  for (const mine = me; mine === me && state === 'reading'; await sleep(options['heartbeat-ms'])) {
    const { error } = await askCoordinator('Heartbeat', mine)
    if (mine === me) check(error) // else it is no news
    if (divided) await refresh(divided.topics) // who leads looks after new partitions
    if (divided && divided.topics.map(count).join() !== divided.counts) outcome ||= 'rejoin'
  }
}

// [6] Positions: { topic, partition, offset, committed }, and what goes along in requests.
const flat = (topics) => topics.flatMap(({ topic, partitions }) => partitions.map((each) => ({ topic, ...each })))
const grouped = (list) => [...new Set(list.map((each) => each.topic))]
  .map((topic) => ({ topic, partitions: list.filter((each) => each.topic === topic) }))
const shown = (positions) => positions.map(({ topic, partition, offset }) => ({ topic, partition, offset }))
async function loadPositions(topics) {
  const answer = await askCoordinator('OffsetFetch', { group: options.group, topics })
  must(answer.error, 'OffsetFetch')
  return Promise.all(flat(answer.topics).map(async ({ topic, partition, offset, error }) => {
    must(error, 'OffsetFetch')
    const begin = offset < 0 ? await earliest(topic, partition) : offset
    return { topic, partition, offset: begin, committed: offset, metadata: CLIENT, max_bytes: options['max-bytes'] }
  }))
}
const STALE = [3, 5, 6, 7, 56, 74, 75, 78] // [10] refresh or retry
const earliest = (topic, partition) => retry(async () => {
  await refresh([topic])
  const request = { isolation: 0, topics: [{ topic, partitions: [{ partition, timestamp: -2 }] }] }
  const [found] = flat((await connect(leaders.get(topic).get(partition), 'list').ask('ListOffsets', request)).topics)
  if (!STALE.includes(found.error)) must(found.error, 'ListOffsets')
  return found.error ? undefined : found.offset
})
async function commit(positions) {
  const moved = positions.filter((each) => each.offset !== each.committed)
  if (!moved.length) return
  const errorOf = (answer) => flat(answer.topics).find((each) => each.error)?.error ?? 0
  const error = errorOf(await askCoordinator('OffsetCommit', { ...me, topics: grouped(moved) }, errorOf))
  if (check(error)) for (const each of moved) each.committed = each.offset
  emit(error ? 'commit_failed' : 'committed', { error, offsets: shown(moved) })
}

// [8] Batches.
const HEADER = { base: i64, length: i32, epoch: i32, magic: i8, crc: i32, attributes: i16, last: i32, first_time: i64,
  max_time: i64, producer: i64, producer_epoch: i16, sequence: i32 }
const PAIR = { key: 'varbytes', value: 'varbytes' }, HEADERS = [PAIR, 'varint']
const RECORDS = [{ length: 'varint', attributes: i8, time: 'varint', offset: 'varint', ...PAIR, headers: HEADERS }]
const CRC = Array.from({ length: 256 }, (_, i) => Array(8).fill().reduce((c) => (c >>> 1) ^ (c & 1 && 0x82f63b78), i))
const crc32c = (data) => ~data.reduce((crc, byte) => CRC[(crc ^ byte) & 255] ^ (crc >>> 8), -1)
const show = (data) => data?.toString() ?? null
function handle(position, data) { // prints the records of whole batches, and moves the position behind them
  const { topic, partition } = position
  const sizeAt = (at) => (data.length - at < 12 ? Infinity : 12 + data.readInt32BE(at + 8))
  for (let at = 0, size; (size = sizeAt(at)) <= data.length - at; at += size) {
    const from = { data: data.subarray(at, at + size), at: 0 }, batch = read(HEADER, from)
    const good = batch.magic === 2 && !(batch.attributes & 7) && batch.crc === crc32c(from.data.subarray(21))
    if (!good) throw new Failure(`${topic}-${partition}@${batch.base}: damaged, compressed, or of an old format`)
    for (const record of batch.attributes & 32 ? [] : read(RECORDS, from)) { // 32: a control batch
      const offset = batch.base + record.offset, key = show(record.key), value = show(record.value)
      const timestamp_ms = batch.attributes & 8 ? batch.max_time : batch.first_time + record.time
      const headers = record.headers.map((each) => [show(each.key), show(each.value)])
      if (offset >= position.offset) emit('record', { topic, partition, offset, timestamp_ms, key, value, headers })
    }
    position.offset = batch.base + batch.last + 1
  }
}

// [7] Fetching.
async function round(positions) {
  const leaderOf = ({ topic, partition }) => leaders.get(topic)?.get(partition)
  const answers = await Promise.all([...new Set(positions.map(leaderOf))].map(async (leader) => {
    const part = positions.filter((each) => leaderOf(each) === leader)
    const limits = { wait: options['max-wait-ms'], min_bytes: 1, max_bytes: 50 << 20, isolation: 0, session: 0 }
    const request = { ...limits, topics: grouped(part), forgotten: [], rack: '' }
    const answer = leader && await connect(leader, 'fetch').ask('Fetch', request).catch(pass)
    return answer ? flat(answer.topics) : part.map((each) => ({ ...each, error: 6 })) // no leader, or out of reach
  }))
  if (outcome) return // they were fetched for an older truth
  for (const { topic, partition, error, records } of answers.flat()) {
    const position = positions.find((each) => each.topic === topic && each.partition === partition)
    if (error === 1) position.offset = await earliest(topic, partition)
    else if (!STALE.includes(error)) must(error, 'Fetch'), handle(position, records ?? Buffer.alloc(0))
  }
  await commit(positions)
  positions.push(positions.shift()) // another one is the first next time
  if (answers.flat().some((each) => STALE.includes(each.error))) await sleep(100), await refresh(TOPICS)
}

// [9] The life of a member.
const fail = (error) => { emit('error', { message: String(error.stack) }); process.exit(1) }
async function leave() { // on a connection of its own: a JoinGroup may be waiting on the other
  const leaving = { group: options.group, members: [{ id: me.member }] }
  if (me.member && coordinator) await connect(coordinator, 'leave').ask('LeaveGroup', leaving, 3000).catch(pass)
  emit('left', {})
  process.exit(0)
}
process.on('SIGTERM', () => { stopping = true; if (state !== 'reading') leave() })
async function main() {
  await checkVersions()
  await refresh(TOPICS)
  while (!stopping) {
    state = 'joining', divided = undefined
    const assigned = await join()
    if (assigned === undefined) { await sleep(100); continue }
    state = 'reading', outcome = ''
    beat().catch(fail)
    const positions = await loadPositions(assigned)
    emit('assigned', { ...me, partitions: shown(positions) })
    while (!outcome && !stopping) await (positions.length ? round(positions) : sleep(100))
    if (outcome !== 'lost') await commit(positions)
    emit('revoked', { partitions: shown(positions), why: outcome || 'leaving' })
  }
  await leave()
}
main().catch(fail)
