// Writes a document that only one process at a time may write.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import grpc from '@grpc/grpc-js'
import { loadSync } from '@grpc/proto-loader'

const TTL = Number(process.env.LOCK_TTL_SECONDS ?? 30), WAIT = 10
const LOST = [grpc.status.FAILED_PRECONDITION, grpc.status.NOT_FOUND]
const RETRY = JSON.stringify({ methodConfig: [{
  name: [{ service: 'quota.v1.QuotaService' }], waitForReady: true, retryPolicy: {
  maxAttempts: 5, initialBackoff: '0.1s', maxBackoff: '1s', backoffMultiplier: 2,
  retryableStatusCodes: ['UNAVAILABLE'] } }] }) // the same message again, so the same id
const proto = loadSync('quota/v1/quota_service.proto', { includeDirs: ['proto'], keepCase: true, longs: String })
const { QuotaService } = grpc.loadPackageDefinition(proto).quota.v1
const quota = new QuotaService(process.env.QUOTAD_SERVER, grpc.credentials.createInsecure(),
  { 'grpc.service_config': RETRY })
const call = (method, request, seconds) =>
  promisify(quota[method]).call(quota, request, { deadline: Date.now() + seconds * 1000 })

// Runs work with the fencing token, and a signal that is aborted when the lock is lost.
async function locked(doc, work) {
  const id = { namespace: 'docs', reservation_id: randomUUID() }, ttl = { seconds: TTL }
  const done = new AbortController(), lost = new AbortController()
  async function renew(pause = TTL / 3) {
    while (await sleep(pause * 1000, true, { signal: done.signal }).catch(() => false)) {
      const error = await call('Extend', { ...id, ttl }, TTL / 3).then(() => null, (error) => error)
      if (LOST.includes(error?.code)) return lost.abort('the lock is lost') // RESERVATION_EXPIRED, ALREADY_RELEASED
      pause = error ? TTL / 30 : TTL / 3 // UNAVAILABLE and the like: nobody says that it is lost
    }
  }
  try {
    const { reservation } = await call('Reserve', { ...id, items: [{ metric: 'edit' }], dimensions: { doc },
      ttl, wait: { seconds: WAIT } }, WAIT + 5)
    renew()
    return await work(BigInt(reservation.charges[0].fencing_token), lost.signal)
  } finally { // after a failed Reserve too: it may have been granted and the answer lost
    done.abort()
    await call('Release', { ...id, allow_missing: true }, 5).catch(() => {}) // where this fails, the ttl ends the lock
  }
}

const tokens = new Map() // in what you write to, which refuses a writer who is late
function save(doc, text, token) {
  if (token < (tokens.get(doc) ?? 0n)) throw new Error(`${doc} was written with a later token than ${token}`)
  tokens.set(doc, token)
}

await locked('doc-7', async (token, lost) => {
  const seconds = Number(process.env.WORK_SECONDS ?? 1)
  await sleep(seconds * 1000, null, { signal: lost }) // the work, as long as the lock is held
  save('doc-7', 'some text', token)
  console.log(`saved doc-7 with token ${token}`)
}).finally(() => quota.close())
