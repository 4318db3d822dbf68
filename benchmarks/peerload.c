/* peerload: a load generator for the messaging systems that users compare us with, in the manner of mqload.c.
 *
 *   cc -O2 -o peerload peerload.c -lm
 *   peerload SYSTEM send [options]    closed loop: each connection has `window` messages in flight; at the end it waits
 *                                     for the answers to all of them, so that every message counts that the server has
 *   peerload SYSTEM drain [options]   one group reads `-m` messages; connection i reads queue, partition or key i
 *
 * SYSTEM: nats     JetStream, stream and subject TOPIC; drain: one pull consumer, 1,000 messages a request, AckAll
 *         kafka    Produce v7, acks=1; each request has -B messages for one partition; drain: Fetch v4 of 1 MB
 *         rabbitmq AMQP 0-9-1, durable queues TOPIC0 to TOPICn, persistent messages, publisher confirms; drain: prefetch
 *                  of 2,000, one acknowledgement for 500
 *         redis    XADD to the keys TOPIC0 to TOPICn; drain: XREADGROUP of 256, one XACK for them
 * options (default): -p port -c connections (64) -w window (1) -s seconds (10) -b body bytes (128) -t topic (Load)
 *   -q queues (4) -B messages in a Kafka batch (1) -m messages of a drain
 * One JSON line is printed: rate, latency in microseconds of a message or batch from write to answer, failures.
 * Exit status: 0, or 1 when anything failed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RING = 8192 }; /* sends of a connection that are not answered: a power of two above any window */
static const char *topic = "Load";
static int port, conns = 64, window = 1, body = 128, queues = 4, batch = 1, drain, stopping, max_window = RING / 2;
static double seconds = 10;
static uint64_t wanted, total, failures, rng = 0x9E3779B97F4A7C15ull, in_flight;

static uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static uint64_t rnd(void) { rng ^= rng << 13; rng ^= rng >> 7; rng ^= rng << 17; return rng; }
static void die(const char *what) { fprintf(stderr, "peerload: %s: %s\n", what, errno ? strerror(errno) : "unexpected answer"); exit(1); }

/* latency histogram: 64 sub-buckets for each power of two of nanoseconds */
static uint64_t hist[64 * 64], hist_n;
static void record(uint64_t ns, uint64_t n) { int e = 63 - __builtin_clzll(ns | 1), s = e < 6 ? 0 : (ns >> (e - 6)) & 63; hist[e * 64 + s] += n; hist_n += n; }
static double quantile(double q) { uint64_t want = q * hist_n, seen = 0; for (int i = 0; i < 64 * 64; i++) { seen += hist[i]; if (seen > want) { int e = i / 64, s = i % 64; return (e < 6 ? (double)(1ull << e) : (double)((64ull + s) << (e - 6))) / 1000.0; } } return 0; }

struct conn {
  int fd, number;
  char *in; size_t in_len, in_cap;
  char *out; size_t out_len, out_off, out_cap;
  uint64_t *sent_at, next, first; /* times of sends by their number; `first` is the lowest one that is not answered */
  int flying; /* sends that are not answered */
  uint64_t offset, taken, unacknowledged; /* of a drain */
};

static char *room(struct conn *c, size_t n) {
  if (c->out_len + n > c->out_cap) { c->out_cap = (c->out_len + n) * 2; c->out = realloc(c->out, c->out_cap); }
  return c->out + c->out_len;
}
static void done(struct conn *c, char *end) { c->out_len = end - c->out; }
static char *bytes(char *p, const void *s, size_t n) { memcpy(p, s, n); return p + n; }
static char *text(char *p, const char *s) { return bytes(p, s, strlen(s)); }
static char *decimal(char *p, uint64_t n) { char digits[20]; int k = sizeof digits; do digits[--k] = '0' + n % 10; while (n /= 10); return bytes(p, digits + k, sizeof digits - k); }
static char *u8(char *p, uint8_t v) { *p = v; return p + 1; }
static char *u16(char *p, uint16_t v) { v = htobe16(v); return bytes(p, &v, 2); }
static char *u32(char *p, uint32_t v) { v = htobe32(v); return bytes(p, &v, 4); }
static char *u64(char *p, uint64_t v) { v = htobe64(v); return bytes(p, &v, 8); }
static uint16_t g16(const char *p) { uint16_t v; memcpy(&v, p, 2); return be16toh(v); }
static uint32_t g32(const char *p) { uint32_t v; memcpy(&v, p, 4); return be32toh(v); }
static uint64_t g64(const char *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }
static char *filled(char *p) { /* a body; each one differs */
  enum { PERIOD = 59 };
  uint64_t x = rnd();
  for (int k = 0; k < body && k < PERIOD; k++) p[k] = "abcdefghijklmnopqrstuvwxyz012345"[(x >> k) & 31];
  for (int have = PERIOD; have < body; have *= 2) memcpy(p + have, p, have < body - have ? have : body - have);
  return p + body;
}

/* Sends: `begin` notes the time, `answered` counts and makes room for the next one. */
static void begin(struct conn *c) { c->sent_at[c->next++ & (RING - 1)] = now_ns(); c->flying++; in_flight++; }
static void answered(struct conn *c, uint64_t number, int good, uint64_t now) {
  uint64_t *at = &c->sent_at[number & (RING - 1)];
  if (number < c->first || number >= c->next || !*at) { errno = 0; die("answer to no send"); }
  record(now - *at, batch); *at = 0; c->flying--; in_flight--;
  while (c->first < c->next && !c->sent_at[c->first & (RING - 1)]) c->first++;
  if (good) total += batch; else failures += batch;
}

/* Blocking, before the load. */
static void flush_now(struct conn *c) { for (size_t at = 0; at < c->out_len;) { ssize_t n = write(c->fd, c->out + at, c->out_len - at); if (n <= 0) die("write"); at += n; } c->out_len = 0; }
static void more_now(struct conn *c) { ssize_t n = read(c->fd, c->in + c->in_len, c->in_cap - c->in_len); if (n <= 0) die("the server closed the connection"); c->in_len += n; }
static void drop(struct conn *c, size_t n) { memmove(c->in, c->in + n, c->in_len -= n); }

/* ---- NATS: lines; an acknowledgement is a message to the reply subject, which ends in the send's number ---- */
static void nats_ask(struct conn *c) {
  char ask[128], *p = room(c, 512); int n = sprintf(ask, "{\"batch\":1000,\"expires\":120000000000}");
  done(c, p + sprintf(p, "PUB $JS.API.CONSUMER.MSG.NEXT.%s.readers _I.%d %d\r\n%s\r\n", topic, getpid(), n, ask));
}
static void nats_hello(struct conn *c) {
  char *p = room(c, 512);
  done(c, p + sprintf(p, "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"c\",\"version\":\"1\",\"protocol\":1}\r\nSUB _I.%d%s 1\r\nPING\r\n", c->number * 1000000 + getpid(), drain ? "" : ".*"));
  flush_now(c);
  char *pong; while (!(pong = memmem(c->in, c->in_len, "PONG\r\n", 6))) more_now(c);
  drop(c, pong + 6 - c->in);
  if (drain) { nats_ask(c); nats_ask(c); }
}
static void nats_send(struct conn *c) {
  char *p = room(c, body + 256);
  p = text(text(text(p, "PUB "), topic), " _I."); p = u8(decimal(p, c->number * 1000000 + getpid()), '.'); p = text(decimal(u8(decimal(p, c->next), ' '), body), "\r\n");
  done(c, text(filled(p), "\r\n")); begin(c);
}
static size_t nats_take(struct conn *c, char *p, size_t n, uint64_t now) {
  char *line = memmem(p, n, "\r\n", 2); if (!line) return 0;
  size_t used = line + 2 - p;
  if (!memcmp(p, "PING", 4)) { char *q = room(c, 8); done(c, text(q, "PONG\r\n")); return used; }
  if (!memcmp(p, "-ERR", 4)) { fprintf(stderr, "%.*s\n", (int)used, p); failures++; return used; }
  if (memcmp(p, "MSG ", 4)) return used;
  char *size = line; while (size[-1] != ' ') size--;
  size_t length = strtoul(size, 0, 10); if (n < used + length + 2) return 0;
  if (!drain) {
    char *end = memchr(p + 4, ' ', line - p), *number = end; while (number[-1] != '.') number--;
    int good = memmem(line, length, "\"seq\":", 6) != NULL; if (!good) fprintf(stderr, "%.*s\n", (int)length, line + 2);
    answered(c, strtoull(number, 0, 10), good, now);
  } else { /* MSG subject sid reply size */
    total++;
    if (++c->taken % 1000 == 0 || total == wanted) { char *reply = size - 1; while (reply[-1] != ' ') reply--; char *q = room(c, 512); done(c, q + sprintf(q, "PUB %.*s 4\r\n+ACK\r\n", (int)(size - 1 - reply), reply)); if (total < wanted) nats_ask(c); }
  }
  return used + length + 2;
}

/* ---- Redis: replies in the order of the commands ---- */
static void redis_read(struct conn *c) {
  char key[300]; int n = sprintf(key, "%s%d", topic, c->number); char *p = room(c, 1024);
  done(c, p + sprintf(p, "*9\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$7\r\nreaders\r\n$1\r\nc\r\n$5\r\nCOUNT\r\n$3\r\n256\r\n$7\r\nSTREAMS\r\n$%d\r\n%s\r\n$1\r\n>\r\n", n, key));
}
static void redis_hello(struct conn *c) { if (drain) redis_read(c); }
static void redis_send(struct conn *c) {
  char key[300], *p = room(c, body + 512), *end = decimal(text(key, topic), rnd() % queues);
  p = text(decimal(text(p, "*5\r\n$4\r\nXADD\r\n$"), end - key), "\r\n"); p = text(decimal(text(bytes(p, key, end - key), "\r\n$1\r\n*\r\n$1\r\nb\r\n$"), body), "\r\n");
  done(c, text(filled(p), "\r\n")); begin(c);
}
/* The end of a whole reply or NULL; the number of bulk strings so far, and the entries' ids into `out`. */
static char *redis_reply(char *p, char *end, int depth, int first, char **out, int *ids) {
  char *line = memmem(p, end - p, "\r\n", 2); if (!line) return NULL;
  long n = strtol(p + 1, 0, 10);
  if (*p == '-') { fprintf(stderr, "%.*s\n", (int)(line - p), p); failures++; }
  if (*p == '$') { if (n < 0) return line + 2; if (end - line < n + 4) return NULL; if (depth == 4 && first && out) { *out = text(bytes(text(decimal(text(*out, "$"), n), "\r\n"), line + 2, n), "\r\n"); ++*ids; } return line + 2 + n + 2; }
  if (*p != '*') return line + 2;
  char *at = line + 2;
  for (long k = 0; k < n && at; k++) at = at < end ? redis_reply(at, end, depth + 1, k == 0, out, ids) : NULL;
  return at;
}
static size_t redis_take(struct conn *c, char *p, size_t n, uint64_t now) {
  static char list[256 * 64]; char *ids = list; int count = 0;
  char *end = redis_reply(p, p + n, 0, 0, drain ? &ids : NULL, &count); if (!end) return 0;
  if (!drain) answered(c, c->first, *p == '$', now);
  else if (count) {
    char key[300], *q = room(c, sizeof list + 1024); int length = sprintf(key, "%s%d", topic, c->number);
    q += sprintf(q, "*%d\r\n$4\r\nXACK\r\n$%d\r\n%s\r\n$7\r\nreaders\r\n", 3 + count, length, key);
    done(c, bytes(q, list, ids - list)); total += count; redis_read(c);
  }
  return end - p;
}

/* ---- Kafka: length, correlation id, fields; one partition in a request ---- */
static uint32_t crc_table[8][256];
static void crc_begin(void) { for (int i = 0; i < 256; i++) { uint32_t v = i; for (int k = 0; k < 8; k++) v = v & 1 ? v >> 1 ^ 0x82f63b78u : v >> 1; crc_table[0][i] = v; } }
#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c(const char *p, size_t n) { uint64_t v = ~0u; for (; n >= 8; n -= 8, p += 8) { uint64_t x; memcpy(&x, p, 8); v = __builtin_ia32_crc32di(v, x); } for (; n; n--) v = __builtin_ia32_crc32qi(v, *p++); return ~(uint32_t)v; }
#else
static uint32_t crc32c(const char *p, size_t n) { uint32_t v = ~0u; for (; n; n--) v = crc_table[0][(v ^ *p++) & 255] ^ v >> 8; return ~v; }
#endif
static char *varint(char *p, uint64_t v) { v <<= 1; while (v >= 128) { *p++ = v | 128; v >>= 7; } *p++ = v; return p; }
static int varint_size(uint64_t v) { char some[10]; return varint(some, v) - some; }
static char *kafka_head(char *p, int key, int version, uint32_t id) { return text(u16(u32(u16(u16(p + 4, key), version), id), 8), "peerload"); }
static char *kafka_topic(char *p) { return text(u16(u32(p, 1), strlen(topic)), topic); }
static void kafka_fetch(struct conn *c) {
  char *start = room(c, 512), *p = kafka_head(start, 1, 4, 0);
  p = u8(u32(u32(u32(u32(p, -1), 500), 1), 50 << 20), 0);
  p = u32(u64(u32(u32(kafka_topic(p), 1), c->number), c->offset), 1 << 20);
  u32(start, p - start - 4); done(c, p);
}
static void kafka_hello(struct conn *c) { if (drain) kafka_fetch(c); }
static void kafka_send(struct conn *c) {
  char *start = room(c, 512 + (size_t)batch * (body + 32)), *p = kafka_head(start, 0, 7, c->next);
  p = u32(u32(kafka_topic(u32(u16(u16(p, -1), 1), 30000)), 1), rnd() % queues);
  char *size = p, *records = p + 4; struct timespec t; clock_gettime(CLOCK_REALTIME, &t); uint64_t ms = t.tv_sec * 1000ull + t.tv_nsec / 1000000;
  p = u8(u32(u64(records, 0) + 4, 0), 2); char *crc = p;
  p = u32(u16(u64(u64(u64(u32(u16(p + 4, 0), batch - 1), ms), ms), -1), -1), -1); p = u32(p, batch);
  for (int k = 0; k < batch; k++) { p = varint(p, 1 + 1 + varint_size(k) + 1 + varint_size(body) + body + 1); *p++ = 0; *p++ = 0; p = varint(p, k); *p++ = 1; p = filled(varint(p, body)); *p++ = 0; }
  u32(size, p - records); u32(records + 8, p - records - 12); u32(crc, crc32c(crc + 4, p - crc - 4)); u32(start, p - start - 4);
  done(c, p); begin(c);
}
static size_t kafka_take(struct conn *c, char *p, size_t n, uint64_t now) {
  if (n < 4 || n < 4 + (size_t)g32(p)) return 0;
  size_t used = 4 + g32(p); char *at = p + (drain ? 16 : 12); at += 2 + g16(at) + 8; int code = (int16_t)g16(at);
  if (code) { fprintf(stderr, "kafka error %d\n", code); if (drain) failures++; }
  if (!drain) { answered(c, g32(p + 4), !code, now); return used; }
  at += 18; uint32_t aborted = g32(at); at += 4 + (aborted == UINT32_MAX ? 0 : 16 * aborted); char *end = at + 4 + g32(at); at += 4;
  while (end - at >= 61 && end - at >= 12 + (long)g32(at + 8)) { /* the last one may be cut off */
    uint64_t first = g64(at), next = first + g32(at + 23) + 1; total += next - (c->offset > first ? c->offset : first); c->offset = next; at += 12 + g32(at + 8);
  }
  if (total < wanted && !failures) kafka_fetch(c);
  return used;
}

/* ---- RabbitMQ: AMQP 0-9-1 frames: type, channel, size, payload, 0xCE ---- */
static char *method(char *p, int channel, int class, int id) { return u16(u16(u16(u8(p, 1), channel) + 4, class), id); }
static char *framed(char *start, char *end) { u32(start + 3, end - start - 7); return u8(end, 0xCE); }
static char *short_text(char *p, const char *s) { return text(u8(p, strlen(s)), s); }
static char *long_text(char *p, const char *s, size_t n) { return bytes(u32(p, n), s, n); }
static void amqp_call(struct conn *c, char *end, uint32_t answer) {
  done(c, framed(c->out, end)); flush_now(c);
  while (answer) {
    while (c->in_len < 8 || c->in_len < 8 + g32(c->in + 3)) more_now(c);
    uint32_t got = c->in[0] == 1 ? g32(c->in + 7) : 0, size = g32(c->in + 3);
    if (got == answer) answer = 0; else if (got) { fprintf(stderr, "%.*s\n", (int)size, c->in + 7); errno = 0; die("AMQP"); }
    drop(c, 8 + size);
  }
}
static void amqp_hello(struct conn *c) {
  char *p = room(c, 4096); done(c, bytes(p, "AMQP\0\0\11\1", 8)); flush_now(c);
  while (c->in_len < 8 || c->in_len < 8 + g32(c->in + 3)) more_now(c);
  drop(c, 8 + g32(c->in + 3)); /* start */
  amqp_call(c, short_text(long_text(short_text(u32(method(p, 0, 10, 11), 0), "PLAIN"), "\0guest\0guest", 12), "en_US"), 10 << 16 | 30);
  amqp_call(c, u16(u32(u16(method(p, 0, 10, 31), 2047), 131072), 0), 0);
  amqp_call(c, u8(short_text(short_text(method(p, 0, 10, 40), "/"), ""), 0), 10 << 16 | 41);
  amqp_call(c, short_text(method(p, 1, 20, 10), ""), 20 << 16 | 11);
  for (int k = 0; k < queues && c->number == 0; k++) { char name[300]; sprintf(name, "%s%d", topic, k); amqp_call(c, u32(u8(short_text(u16(method(p, 1, 50, 10), 0), name), 2), 0), 50 << 16 | 11); }
  if (!drain) { amqp_call(c, u8(method(p, 1, 85, 10), 0), 85 << 16 | 11); c->next = c->first = 1; return; }
  char name[300]; sprintf(name, "%s%d", topic, c->number);
  amqp_call(c, u8(u16(u32(method(p, 1, 60, 10), 0), 2000), 0), 60 << 16 | 11);
  amqp_call(c, u32(u8(short_text(short_text(u16(method(p, 1, 60, 20), 0), name), "c"), 0), 0), 60 << 16 | 21);
}
static void amqp_send(struct conn *c) {
  char name[300], *start = room(c, body + 512), *p; *decimal(text(name, topic), rnd() % queues) = 0;
  p = framed(start, u8(short_text(short_text(u16(method(start, 1, 60, 40), 0), ""), name), 0)); start = p;
  p = u8(u16(u64(u16(u16(u16(u8(p, 2), 1) + 4, 60), 0), body), 0x1000), 2); p = framed(start, p); start = p; /* delivery-mode 2 */
  done(c, framed(start, filled(u16(u8(p, 3), 1) + 4))); begin(c);
}
static void amqp_acknowledge(struct conn *c) { char *start = room(c, 64); done(c, framed(start, u8(u64(method(start, 1, 60, 80), c->taken), 1))); c->unacknowledged = 0; }
static size_t amqp_take(struct conn *c, char *p, size_t n, uint64_t now) {
  if (n < 8 || n < 8 + (size_t)g32(p + 3)) return 0;
  size_t used = 8 + g32(p + 3); uint32_t what = *p == 1 ? g32(p + 7) : 0;
  if (what == (60 << 16 | 80) || what == (60 << 16 | 120)) { uint64_t tag = g64(p + 11); for (uint64_t k = p[19] & 1 ? c->first : tag; k <= tag; k++) if (c->sent_at[k & (RING - 1)]) answered(c, k, what == (60 << 16 | 80), now); }
  else if (what == (60 << 16 | 60)) {
    char *tag = p + 11; tag += 1 + (uint8_t)*tag; c->taken = g64(tag); c->unacknowledged++; total++;
    if (c->unacknowledged >= 500) amqp_acknowledge(c);
  } else if (what) { fprintf(stderr, "AMQP %x %.*s\n", what, (int)used - 8, p + 7); failures++; }
  return used;
}

static const struct system { const char *name; void (*hello)(struct conn *), (*send)(struct conn *); size_t (*take)(struct conn *, char *, size_t, uint64_t); } SYSTEMS[] = {
  {"nats", nats_hello, nats_send, nats_take}, {"kafka", kafka_hello, kafka_send, kafka_take}, {"rabbitmq", amqp_hello, amqp_send, amqp_take}, {"redis", redis_hello, redis_send, redis_take}};

static void flush_out(int ep, struct conn *c, int i) {
  int waited = c->out_off > 0;
  while (c->out_off < c->out_len) { ssize_t w = write(c->fd, c->out + c->out_off, c->out_len - c->out_off); if (w < 0) { if (errno == EAGAIN) break; die("write"); } c->out_off += w; }
  int left = c->out_off < c->out_len; if (!left) c->out_off = c->out_len = 0;
  if (left || waited) { struct epoll_event e = {.events = EPOLLIN | (left ? EPOLLOUT : 0), .data.u32 = i}; epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e); }
}

int main(int argc, char **argv) {
  const struct system *system = NULL; int o;
  for (int k = 0; k < 4 && argc > 2; k++) if (!strcmp(argv[1], SYSTEMS[k].name)) system = &SYSTEMS[k];
  if (!system || (strcmp(argv[2], "send") && strcmp(argv[2], "drain"))) { fprintf(stderr, "usage: peerload nats|kafka|rabbitmq|redis send|drain [options]; see the head of peerload.c\n"); return 2; }
  drain = !strcmp(argv[2], "drain"); optind = 3;
  while ((o = getopt(argc, argv, "p:c:w:s:b:t:q:B:m:")) != -1) switch (o) {
    case 'p': port = atoi(optarg); break; case 'c': conns = atoi(optarg); break; case 'w': window = atoi(optarg); break; case 's': seconds = atof(optarg); break; case 'b': body = atoi(optarg); break;
    case 't': topic = optarg; break; case 'q': queues = atoi(optarg); break; case 'B': batch = atoi(optarg); break; case 'm': wanted = strtoull(optarg, 0, 10); break; default: return 2; }
  if (strlen(topic) > 200 || window < batch || window > max_window || body < 1 || body > 1 << 20) { fprintf(stderr, "peerload: a value is too large or too small\n"); return 2; }
  if (drain) { conns = strcmp(system->name, "nats") ? queues : 1; batch = 1; }
  crc_begin();
  struct conn *C = calloc(conns, sizeof *C); int ep = epoll_create1(0), one = 1;
  for (int i = 0; i < conns; i++) {
    struct conn *c = &C[i]; struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->number = i; c->in = malloc(c->in_cap = 1 << 18); c->sent_at = calloc(RING, 8);
    c->fd = socket(AF_INET, SOCK_STREAM, 0); if (connect(c->fd, (void *)&a, sizeof a)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); system->hello(c);
  }
  uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9), patience = end + 20000000000ull, now = start;
  for (int i = 0; i < conns; i++) {
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = i}; epoll_ctl(ep, EPOLL_CTL_ADD, C[i].fd, &e);
    if (ioctl(C[i].fd, FIONBIO, &one)) die("ioctl");
    for (int k = 0; k < window / batch && !drain; k++) system->send(&C[i]);
    flush_out(ep, &C[i], i);
  }
  while (drain ? total < wanted && now < end : !stopping || in_flight) {
    struct epoll_event ev[512]; int n = epoll_wait(ep, ev, 512, 100); now = now_ns();
    if (!drain && now >= end && !stopping) stopping = 1;
    if (now > patience) { fprintf(stderr, "peerload: %llu sends were not answered\n", (unsigned long long)in_flight); failures += in_flight; break; }
    for (int k = 0; k < n; k++) {
      int i = ev[k].data.u32; struct conn *c = &C[i]; size_t p = 0, used;
      if (ev[k].events & EPOLLIN) {
        if (c->in_cap - c->in_len < 1 << 16) c->in = realloc(c->in, c->in_cap *= 2);
        ssize_t r = read(c->fd, c->in + c->in_len, c->in_cap - c->in_len - 1); if (r < 0 && errno == EAGAIN) continue; if (r <= 0) die("the server closed the connection");
        c->in_len += r; now = now_ns();
        while (p < c->in_len && (used = system->take(c, c->in + p, c->in_len - p, now))) p += used;
        drop(c, p);
        while (!drain && !stopping && c->flying < window / batch && c->next - c->first < RING) system->send(c);
      }
      flush_out(ep, c, i);
    }
  }
  for (int i = 0; i < conns; i++) { if (C[i].unacknowledged) amqp_acknowledge(&C[i]); flush_out(ep, &C[i], i); shutdown(C[i].fd, SHUT_WR); }
  double el = (now - start) / 1e9; int good = !failures && (!drain || total >= wanted);
  printf("{\"mode\":\"%s\",\"connections\":%d,\"window\":%d,\"batch\":%d,\"body\":%d,\"seconds\":%.3f,\"messages\":%llu,\"per_s\":%.0f,\"p50_us\":%.0f,\"p99_us\":%.0f,\"failures\":%llu}\n", argv[2], conns, window, batch, body, el, (unsigned long long)total, total / el, quantile(.5), quantile(.99), (unsigned long long)failures);
  return !good;
}
