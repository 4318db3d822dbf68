/* grpcload: a load generator that speaks RocketMQ's gRPC over raw HTTP/2, for comparing endpoints side by side.
 *
 *   cc -O2 -o grpcload grpcload.c
 *   grpcload send [options]      closed loop: each connection keeps `window` SendMessage calls in flight
 *   grpcload receive [options]   each of `window` consumers of a connection repeats ReceiveMessage, then AckMessage
 *   grpcload idle [options]      the same, until -s seconds have passed: connections that wait for messages
 *
 * options (default): -h host (127.0.0.1) -p port (8081) -c connections (8) -w window (8) -s seconds (5)
 *   -d folder of the requests; benchmarks/grpcload.py writes it
 *   -r calls a second of all connections, begun on time; latency counts from the due time (0: closed loop)
 *   -m end after so many messages were acknowledged (0: after -s seconds) -k entries of an AckMessage (0: all)
 *   -b seconds between heartbeats (10) -t milliseconds that a call may take, told to the server (23000)
 *   -g connections of one consumer group (0: all)
 *
 * The folder has a serialised request in each of the files settings, heartbeat, send, receive and ack. In them 16 times
 * "@" stands for a number that is new in each message, and "#####" for the number of the connection's group.
 * Every connection is a client of its own, as the official ones are: first its settings over Telemetry and a heartbeat,
 * then the load. Its headers are those of Java's client, and its header table is kept as Netty keeps it.
 *
 * {"ready": connections} is printed before the load, and a line with the figures after it. Answers are right when
 * every status in them has code 20000; a receive may have 40401 (no message). Latency, in microseconds, is that of a
 * call; for receives from the request to the answer of its last acknowledgement, only where there were messages.
 * Exit status: 0, or 1 when anything was wrong.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { OK = 20000, MESSAGE_NOT_FOUND = 40401 };
enum frame_type { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8 };
enum { FRAME_MAX = 16384, WINDOW_BYTES = 1 << 24, HEADER_TABLE_BYTES = 4096, ENTRY_BYTES = 32, GRPC_HEAD = 5 };
enum { WRONG_MAX = 1000 }; /* then the load ends */
enum method { TELEMETRY, HEARTBEAT, SEND, RECEIVE, ACKNOWLEDGE, METHODS };

static const struct { const char *file, *path; } METHOD[METHODS] = {
  {"settings", "/apache.rocketmq.v2.MessagingService/Telemetry"},
  {"heartbeat", "/apache.rocketmq.v2.MessagingService/Heartbeat"},
  {"send", "/apache.rocketmq.v2.MessagingService/SendMessage"},
  {"receive", "/apache.rocketmq.v2.MessagingService/ReceiveMessage"},
  {"ack", "/apache.rocketmq.v2.MessagingService/AckMessage"},
};

static const char *host = "127.0.0.1", *folder = ".";
static int port = 8081, connections = 8, window = 8, ack_entries, group_size, call_ms = 23000;
static double seconds = 5, rate, heartbeat_s = 10;
static uint64_t messages_wanted;

static uint64_t messages, received, calls_done, empty_polls, heartbeats, wrong, counter;
static int poller, ready, running;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void fail(const char *what) {
  fprintf(stderr, "grpcload: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void broken(const char *what) {
  fprintf(stderr, "grpcload: %s\n", what);
  exit(1);
}

/* ---- bytes ------------------------------------------------------------------------------------------------- */
struct buffer { uint8_t *at; size_t from, to, capacity; };
struct bytes { const uint8_t *at, *end; };

/* Room for `n` bytes at the end. */
static uint8_t *room(struct buffer *b, size_t n) {
  if (b->from && b->to + n > b->capacity) {
    memmove(b->at, b->at + b->from, b->to - b->from);
    b->to -= b->from;
    b->from = 0;
  }
  if (b->to + n > b->capacity) {
    b->capacity = (b->to + n) * 2;
    if (!(b->at = realloc(b->at, b->capacity))) fail("memory");
  }
  return b->at + b->to;
}

static void append(struct buffer *b, const void *data, size_t n) {
  memcpy(room(b, n), data, n);
  b->to += n;
}

static void drop(struct buffer *b, size_t n) {
  b->from += n;
  if (b->from == b->to) b->from = b->to = 0;
}

static uint32_t number_at(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

static void put_number(uint8_t *p, uint32_t n) { p[0] = n >> 24; p[1] = n >> 16; p[2] = n >> 8; p[3] = n; }

static void hex(uint8_t *p, uint64_t n, int digits) {
  while (digits--) { p[digits] = "0123456789ABCDEF"[n & 15]; n >>= 4; }
}

/* ---- protobuf: fields of a message, read in order ------------------------------------------------------------ */
struct field { uint32_t number; uint64_t value; struct bytes content; };

static uint64_t varint(struct bytes *b) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (b->at == b->end) broken("an answer ends in a number");
    uint8_t byte = *b->at++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  broken("an answer has a number of more than 64 bits");
  return 0;
}

static int next_field(struct bytes *b, struct field *f) {
  if (b->at == b->end) return 0;
  uint64_t key = varint(b), length = 0;
  f->number = key >> 3;
  f->value = 0;
  switch (key & 7) {
  case 0: f->value = varint(b); break;
  case 1: length = 8; break;
  case 2: length = varint(b); break;
  case 5: length = 4; break;
  default: broken("an answer has a field of an unknown type");
  }
  if (length > (uint64_t)(b->end - b->at)) broken("an answer ends in a field");
  f->content = (struct bytes){b->at, b->at + length};
  b->at += length;
  return 1;
}

/* The code of a Status; its text is printed when it is a wrong one. */
static uint64_t status_code(struct bytes status) {
  static int shown;
  struct field f;
  struct bytes text = {0, 0};
  uint64_t code = 0;
  while (next_field(&status, &f)) {
    if (f.number == 1) code = f.value;
    if (f.number == 2) text = f.content;
  }
  if (code != OK && code != MESSAGE_NOT_FOUND && shown++ < 3)
    fprintf(stderr, "grpcload: status %llu: %.*s\n", (unsigned long long)code, (int)(text.end - text.at), text.at);
  return code;
}

static void put_text_field(struct buffer *b, uint8_t key, struct bytes text) {
  uint64_t n = text.end - text.at;
  uint8_t head[11] = {key};
  int length = 1;
  for (; n > 127; n >>= 7) head[length++] = n | 128;
  head[length++] = n;
  append(b, head, length);
  append(b, text.at, text.end - text.at);
}

/* ---- latencies: 64 buckets for each power of two of nanoseconds ----------------------------------------------- */
static uint64_t histogram[64 * 64], timed;

static void record(uint64_t ns) {
  int power = 63 - __builtin_clzll(ns | 1), part = power < 6 ? 0 : (ns >> (power - 6)) & 63;
  histogram[power * 64 + part]++;
  timed++;
}

static double quantile_us(double q) {
  uint64_t wanted = q * timed, seen = 0;
  for (int i = 0; i < 64 * 64; i++)
    if ((seen += histogram[i]) > wanted) {
      int power = i / 64, part = i % 64;
      return (power < 6 ? (double)(1ull << power) : (double)((64ull + part) << (power - 6))) / 1000;
    }
  return 0;
}

/* ---- requests as they are in the files ----------------------------------------------------------------------- */
static struct template { struct buffer body; size_t counts[2048], groups[8]; int count_length, group_length; } TEMPLATE[METHODS];

static int marks(struct buffer *body, const char *mark, size_t *found, int most) {
  int n = 0;
  uint8_t *p = body->at, *end = body->at + body->to;
  while (n < most && (p = memmem(p, end - p, mark, strlen(mark)))) {
    found[n++] = p - body->at;
    p += strlen(mark);
  }
  return n;
}

static void load_templates(void) {
  for (int m = 0; m < METHODS; m++) {
    struct template *t = &TEMPLATE[m];
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, METHOD[m].file);
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    uint8_t part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, file));) append(&t->body, part, n);
    fclose(file);
    if (t->body.to > 60000) broken("a request is larger than the window of a stream");
    t->count_length = marks(&t->body, "@@@@@@@@@@@@@@@@", t->counts, 2048);
    t->group_length = marks(&t->body, "#####", t->groups, 8);
  }
}

/* The messages of a SendMessage. */
static uint64_t batch(void) {
  static uint64_t found;
  struct field f;
  struct buffer *body = &TEMPLATE[SEND].body;
  if (!found)
    for (struct bytes b = {body->at, body->at + body->to}; next_field(&b, &f);) found += f.number == 1;
  return found;
}

/* ---- connections ----------------------------------------------------------------------------------------------- */
/* A producer, or a consumer, that works through one thing after the other. */
struct worker { uint64_t began; int calls, busy; struct buffer entries; uint64_t received, acknowledged; };
/* A call in flight; its answers are read as they come. */
struct call { uint32_t stream; enum method method; struct worker *worker; int answers, right; uint64_t entries; struct buffer in; };

/* What the server's header table has: the headers below, and one :path for each method. */
enum header { PATH, AUTHORITY = PATH + METHODS, CONTENT_TYPE, TE, USER_AGENT, LANGUAGE, PROTOCOL, CLIENT_VERSION, CLIENT_ID, NAMESPACE, ACCEPT_ENCODING, DATE_TIME, REQUEST_ID, TIMEOUT, HEADER_COUNT };
static const struct { int in_static_table; const char *name; } HEADER[HEADER_COUNT] = {
  [PATH ... PATH + METHODS - 1] = {4, ":path"}, [AUTHORITY] = {1, ":authority"}, [CONTENT_TYPE] = {31, "content-type"},
  [TE] = {0, "te"}, [USER_AGENT] = {58, "user-agent"}, [LANGUAGE] = {0, "x-mq-language"}, [PROTOCOL] = {0, "x-mq-protocol"},
  [CLIENT_VERSION] = {0, "x-mq-client-version"}, [CLIENT_ID] = {0, "x-mq-client-id"}, [NAMESPACE] = {0, "x-mq-namespace"},
  [ACCEPT_ENCODING] = {0, "grpc-accept-encoding"}, [DATE_TIME] = {0, "x-mq-date-time"},
  [REQUEST_ID] = {0, "x-mq-request-id"}, [TIMEOUT] = {0, "grpc-timeout"},
};
enum { TABLE_ENTRIES = 128 };
/* `last` and `value` are of each header the number of its last entry, and which value that has. Entries are numbered from 1. */
struct header_table { uint64_t last[HEADER_COUNT], value[HEADER_COUNT], newest, oldest; size_t sizes[TABLE_ENTRIES], bytes; };

struct connection {
  int fd, number, calls_length;
  uint32_t next_stream;
  int64_t window;
  size_t unread;
  uint64_t heartbeat_due;
  struct buffer in, out;
  struct header_table table;
  struct call *calls;
  struct worker *workers;
};

static struct connection *all;

static void frame(struct connection *c, size_t length, enum frame_type type, int flags, uint32_t stream) {
  uint8_t head[9] = {length >> 16, length >> 8, length, type, flags};
  put_number(head + 5, stream);
  append(&c->out, head, 9);
}

static uint8_t *hpack_number(uint8_t *p, int pattern, int most, size_t n) {
  if (n < (size_t)most) { *p++ = pattern | n; return p; }
  *p++ = pattern | most;
  for (n -= most; n > 127; n >>= 7) *p++ = n | 128;
  *p++ = n;
  return p;
}

static uint8_t *hpack_text(uint8_t *p, const char *text) {
  size_t n = strlen(text);
  p = hpack_number(p, 0, 127, n);
  memcpy(p, text, n);
  return p + n;
}

/* A header as Netty encodes it: an index when the table has it, else a literal that the table takes up. */
static uint8_t *put_header(struct header_table *t, uint8_t *p, int header, const char *value, uint64_t which) {
  uint64_t last = t->last[header];
  int there = last && last >= t->oldest;
  size_t index = 62 + t->newest - last, in_static = HEADER[header].in_static_table;
  if (there && t->value[header] == which) return hpack_number(p, 0x80, 127, index);
  const char *name = HEADER[header].name;
  size_t size = strlen(name) + strlen(value) + ENTRY_BYTES;
  for (; t->bytes + size > HEADER_TABLE_BYTES; t->oldest++) t->bytes -= t->sizes[t->oldest % TABLE_ENTRIES];
  there = last && last >= t->oldest;
  p = hpack_number(p, 0x40, 63, in_static ? in_static : there ? index : 0);
  if (!in_static && !there) p = hpack_text(p, name);
  p = hpack_text(p, value);
  t->last[header] = ++t->newest;
  t->value[header] = which;
  t->sizes[t->newest % TABLE_ENTRIES] = size;
  t->bytes += size;
  return p;
}

static void put_headers(struct connection *c, enum method method, uint32_t stream) {
  static char date[32];
  static time_t second;
  time_t wall = time(0);
  if (wall != second) strftime(date, sizeof date, "%Y%m%dT%H%M%SZ", gmtime(&wall));
  second = wall;
  char authority[64], client[64], request_id[40] = "XXXXXXXX-XXXX-4abc-89ab-0123456789ab", timeout[16];
  snprintf(authority, sizeof authority, "%s:%d", host, port);
  snprintf(client, sizeof client, "load@%d@%d@abcdefghij", (int)getpid(), c->number);
  hex((uint8_t *)request_id, counter >> 16, 8);
  hex((uint8_t *)request_id + 9, counter, 4);
  snprintf(timeout, sizeof timeout, "%du", call_ms * 1000 - (int)(counter % 1000));
  uint8_t block[2048], *p = block;
  struct header_table *t = &c->table;
  *p++ = 0x83; /* :method POST */
  *p++ = 0x86; /* :scheme http */
  p = put_header(t, p, AUTHORITY, authority, 0);
  p = put_header(t, p, PATH + method, METHOD[method].path, 0);
  p = put_header(t, p, CONTENT_TYPE, "application/grpc", 0);
  p = put_header(t, p, TE, "trailers", 0);
  p = put_header(t, p, USER_AGENT, "grpc-java-netty/1.62.2", 0);
  p = put_header(t, p, LANGUAGE, "JAVA", 0);
  p = put_header(t, p, PROTOCOL, "v2", 0);
  p = put_header(t, p, CLIENT_VERSION, "5.0.7", 0);
  p = put_header(t, p, CLIENT_ID, client, 0);
  p = put_header(t, p, NAMESPACE, "", 0);
  p = put_header(t, p, DATE_TIME, date, wall);
  p = put_header(t, p, REQUEST_ID, request_id, counter);
  p = put_header(t, p, ACCEPT_ENCODING, "gzip", 0);
  if (method != TELEMETRY) p = put_header(t, p, TIMEOUT, timeout, counter % 1000);
  frame(c, p - block, HEADERS, END_HEADERS, stream);
  append(&c->out, block, p - block);
}

static struct call *free_call(struct connection *c) {
  for (int i = 0; i < c->calls_length; i++)
    if (!c->calls[i].stream) return &c->calls[i];
  c->calls = realloc(c->calls, (c->calls_length + 1) * sizeof *c->calls);
  if (!c->calls) fail("memory");
  memset(&c->calls[c->calls_length], 0, sizeof *c->calls);
  return &c->calls[c->calls_length++];
}

/* Begin a call: the request of its file, and what is to follow in it. */
static void begin(struct connection *c, enum method method, struct worker *worker, struct bytes more) {
  struct template *t = &TEMPLATE[method];
  struct call *call = free_call(c);
  size_t length = t->body.to + (more.end - more.at), total = GRPC_HEAD + length;
  static struct buffer request;
  request.from = request.to = 0;
  uint8_t *p = room(&request, total);
  p[0] = 0;
  put_number(p + 1, length);
  memcpy(p + GRPC_HEAD, t->body.at, t->body.to);
  if (more.at != more.end) memcpy(p + GRPC_HEAD + t->body.to, more.at, more.end - more.at);
  for (int i = 0; i < t->count_length; i++) hex(p + GRPC_HEAD + t->counts[i], counter + i, 16);
  for (int i = 0; i < t->group_length; i++) {
    char group[12];
    snprintf(group, sizeof group, "%05u", group_size ? (unsigned)(c->number / group_size) % 100000 : 0);
    memcpy(p + GRPC_HEAD + t->groups[i], group, 5);
  }
  call->stream = c->next_stream;
  call->method = method;
  call->worker = worker;
  call->answers = 0;
  call->right = 1;
  call->entries = 0;
  c->next_stream += 2;
  put_headers(c, method, call->stream);
  for (size_t at = 0, part; at < total; at += part) {
    part = total - at < FRAME_MAX ? total - at : FRAME_MAX;
    frame(c, part, DATA, at + part == total && method != TELEMETRY ? END_STREAM : 0, call->stream);
    append(&c->out, p + at, part);
  }
  c->window -= total;
  counter += t->count_length + 1;
  if (worker) worker->calls++;
}

/* ---- the work ----------------------------------------------------------------------------------------------------- */
static const struct bytes NOTHING;
static enum method first_method;

static int fits(struct connection *c, enum method method, size_t more) { return c->window >= (int64_t)(GRPC_HEAD + TEMPLATE[method].body.to + more); }

/* Acknowledge what a worker has received, as far as the window allows. */
static void acknowledge(struct connection *c, struct worker *w) {
  while (w->entries.from < w->entries.to) {
    struct bytes rest = {w->entries.at + w->entries.from, w->entries.at + w->entries.to}, some = {rest.at, rest.at};
    struct field f;
    for (int n = 0; (!ack_entries || n < ack_entries) && next_field(&rest, &f); n++) some.end = rest.at;
    if (!fits(c, ACKNOWLEDGE, some.end - some.at)) return;
    begin(c, ACKNOWLEDGE, w, some);
    drop(&w->entries, some.end - some.at);
  }
}

/* Begin what can be begun. */
static void advance(struct connection *c) {
  for (int i = 0; i < window; i++) {
    struct worker *w = &c->workers[i];
    acknowledge(c, w);
    if (w->busy || !running || rate || !fits(c, first_method, 0)) continue;
    w->busy = 1;
    w->began = now_ns();
    begin(c, first_method, w, NOTHING);
  }
}

/* A worker's calls have ended and nothing is left to acknowledge. */
static void round_ended(struct worker *w) {
  if (first_method == SEND || w->received) record(now_ns() - w->began);
  else empty_polls++;
  w->received = w->acknowledged = 0;
  w->busy = 0;
}

static void call_ended(struct connection *c, struct call *call, int reset) {
  struct worker *w = call->worker;
  enum method method = call->method;
  /* A batch is stored as a whole, and has one entry for all of its messages. */
  if (method == SEND && call->right && call->entries == 1) call->entries = batch();
  int right = !reset && call->right && call->answers && (method != SEND || call->entries == batch());
  if (!right) {
    wrong++;
    if (wrong <= 3) fprintf(stderr, "grpcload: %s: %s\n", METHOD[method].path, reset ? "the server reset the stream" : call->answers ? "the answer is wrong" : "the call ended without an answer");
  }
  if (method == TELEMETRY) broken("the server ended Telemetry");
  if (method == HEARTBEAT) {
    heartbeats++;
    if (heartbeats <= (uint64_t)connections) ready++;
  }
  if (method == SEND || method == ACKNOWLEDGE) messages += call->entries;
  call->stream = 0;
  call->in.from = call->in.to = 0;
  if (!w) return;
  calls_done++;
  w->calls--;
  if (method == ACKNOWLEDGE) w->acknowledged += call->entries;
  acknowledge(c, w);
  if (!w->calls && w->entries.from == w->entries.to) {
    if (first_method == RECEIVE && w->acknowledged != w->received) wrong++;
    round_ended(w);
  }
}

/* An entry for AckMessage, from a message that was received. */
static void take_message(struct worker *w, struct bytes message) {
  struct field f, own;
  struct bytes id = {0, 0}, handle = {0, 0};
  while (next_field(&message, &f))
    if (f.number == 3)
      while (next_field(&f.content, &own)) {
        if (own.number == 3) id = own.content;
        if (own.number == 12) handle = own.content;
      }
  if (!handle.at || !id.at) broken("a message has no id or no receipt handle");
  static struct buffer entry;
  entry.from = entry.to = 0;
  put_text_field(&entry, 0x0a, id);
  put_text_field(&entry, 0x12, handle);
  put_text_field(&w->entries, 0x1a, (struct bytes){entry.at, entry.at + entry.to});
  w->received++;
  received++;
}

/* One message of an answer: its statuses, entries that are right, and messages received. */
static void take_answer(struct call *call, struct bytes answer) {
  enum method method = call->method;
  struct field f, own;
  call->answers++;
  int has_status = method == RECEIVE || (method == TELEMETRY && call->answers > 1);
  while (next_field(&answer, &f)) {
    if (f.number == 1) {
      uint64_t code = status_code(f.content);
      has_status = 1;
      if (code != OK && !(method == RECEIVE && code == MESSAGE_NOT_FOUND)) call->right = 0;
    } else if (f.number == 2 && method == RECEIVE) {
      take_message(call->worker, f.content);
    } else if (f.number == 2 && (method == SEND || method == ACKNOWLEDGE)) {
      uint32_t status = method == SEND ? 1 : 3;
      while (next_field(&f.content, &own))
        if (own.number == status) call->entries += status_code(own.content) == OK;
    }
  }
  if (!has_status) call->right = 0;
  if (method == TELEMETRY && !call->right) broken("the server refused the settings");
}

/* ---- what comes in --------------------------------------------------------------------------------------------------- */
static struct call *call_of(struct connection *c, uint32_t stream) {
  for (int i = 0; i < c->calls_length; i++)
    if (c->calls[i].stream == stream) return &c->calls[i];
  return 0;
}

static void take_data(struct connection *c, struct call *call, struct bytes data) {
  append(&call->in, data.at, data.end - data.at);
  while (call->in.to - call->in.from >= GRPC_HEAD) {
    uint8_t *p = call->in.at + call->in.from;
    size_t length = number_at(p + 1);
    if (p[0]) broken("an answer is compressed");
    if (call->in.to - call->in.from < GRPC_HEAD + length) break;
    int first = !call->answers;
    take_answer(call, (struct bytes){p + GRPC_HEAD, p + GRPC_HEAD + length});
    drop(&call->in, GRPC_HEAD + length);
    if (call->method == TELEMETRY && first) { /* the client is known: its first sign of life */
      begin(c, HEARTBEAT, 0, NOTHING);
      return;
    }
  }
}

static void take_settings(struct connection *c, struct bytes settings) {
  for (; settings.end - settings.at >= 6; settings.at += 6) {
    uint32_t value = number_at(settings.at + 2);
    int name = settings.at[1];
    if (name == 1 && value < HEADER_TABLE_BYTES) broken("the server's header table is too small");
    if (name == 4 && value < 65535) broken("the server's windows are too small");
  }
  frame(c, 0, SETTINGS, ACK, 0);
}

static void take_frame(struct connection *c, int type, int flags, uint32_t stream, struct bytes payload) {
  struct call *call = stream ? call_of(c, stream) : 0;
  switch (type) {
  case DATA:
    if (flags & PADDED) broken("a frame is padded");
    c->unread += payload.end - payload.at;
    if (c->unread > WINDOW_BYTES / 2) {
      uint8_t more[4];
      put_number(more, c->unread);
      frame(c, 4, WINDOW_UPDATE, 0, 0);
      append(&c->out, more, 4);
      c->unread = 0;
    }
    if (call) take_data(c, call, payload);
    call = stream ? call_of(c, stream) : 0; /* a call that began meanwhile may have moved it */
    if (call && flags & END_STREAM) call_ended(c, call, 0);
    break;
  case HEADERS:
    if (call && flags & END_STREAM) call_ended(c, call, 0);
    break;
  case RST_STREAM:
    if (call) call_ended(c, call, 1);
    break;
  case SETTINGS:
    if (!(flags & ACK)) take_settings(c, payload);
    break;
  case PING:
    if (flags & ACK) break;
    frame(c, 8, PING, ACK, 0);
    append(&c->out, payload.at, 8);
    break;
  case GOAWAY:
    fprintf(stderr, "grpcload: GOAWAY %.*s\n", (int)(payload.end - payload.at) - 8, payload.at + 8);
    exit(1);
  case WINDOW_UPDATE:
    if (!stream) c->window += number_at(payload.at) & 0x7fffffff;
    break;
  }
}

static void flush(struct connection *c) {
  while (c->out.from < c->out.to) {
    ssize_t n = send(c->fd, c->out.at + c->out.from, c->out.to - c->out.from, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) fail("send");
    drop(&c->out, n);
  }
}

static void take(struct connection *c) {
  for (;;) {
    ssize_t n = recv(c->fd, room(&c->in, 16384), 16384, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) fail("recv");
    if (n == 0) broken("the server closed a connection");
    c->in.to += n;
    while (c->in.to - c->in.from >= 9) {
      uint8_t *p = c->in.at + c->in.from;
      size_t length = p[0] << 16 | p[1] << 8 | p[2];
      if (c->in.to - c->in.from < 9 + length) break;
      take_frame(c, p[3], p[4], number_at(p + 5) & 0x7fffffff, (struct bytes){p + 9, p + 9 + length});
      drop(&c->in, 9 + length);
    }
    if (n < 16384) break;
  }
  advance(c);
  flush(c);
}

static void open_connection(struct connection *c, int number) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  int one = 1;
  inet_pton(AF_INET, host, &address.sin_addr);
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (c->fd < 0 || connect(c->fd, (void *)&address, sizeof address)) fail("connect");
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  c->number = number;
  c->next_stream = 1;
  c->window = 65535;
  c->table.oldest = 1;
  c->workers = calloc(window, sizeof *c->workers);
  uint8_t settings[12] = {0, 2, 0, 0, 0, 0, 0, 4}, more[4]; /* ENABLE_PUSH, INITIAL_WINDOW_SIZE */
  put_number(settings + 8, WINDOW_BYTES);
  put_number(more, WINDOW_BYTES - 65535);
  append(&c->out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
  frame(c, 12, SETTINGS, 0, 0);
  append(&c->out, settings, 12);
  frame(c, 4, WINDOW_UPDATE, 0, 0);
  append(&c->out, more, 4);
  begin(c, TELEMETRY, 0, NOTHING);
  flush(c);
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
}

/* Wait for at most `ns` nanoseconds, and handle what came. */
static void turn(int64_t ns) {
  struct epoll_event events[256];
  struct timespec most = {ns / 1000000000, ns % 1000000000};
  int n = epoll_pwait2(poller, events, 256, &most, 0);
  if (n < 0 && errno != EINTR) fail("epoll_pwait2");
  for (int i = 0; i < n; i++) {
    struct connection *c = events[i].data.ptr;
    if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take(c);
    if (events[i].events & EPOLLOUT) flush(c);
  }
}

static void send_heartbeats(uint64_t now) {
  for (int i = 0; i < connections; i++) {
    struct connection *c = &all[i];
    if (c->heartbeat_due > now || !fits(c, HEARTBEAT, 0)) continue;
    c->heartbeat_due += heartbeat_s * 1e9;
    begin(c, HEARTBEAT, 0, NOTHING);
    flush(c);
  }
}

/* Begin the calls that are due; return when the next one is. Those for which no worker is free wait, and count as late. */
static uint64_t begin_due(uint64_t due, uint64_t now) {
  static int next;
  for (int tried = 0; due <= now && tried < connections * window; tried++, next++) {
    struct connection *c = &all[next % connections];
    struct worker *w = &c->workers[next / connections % window];
    if (w->busy || !fits(c, first_method, 0)) continue;
    w->busy = 1;
    w->began = due;
    begin(c, first_method, w, NOTHING);
    flush(c);
    due += 1e9 / rate;
    tried = 0;
  }
  return due;
}

static int in_flight(void) {
  int n = 0;
  for (int i = 0; i < connections; i++)
    for (int k = 0; k < all[i].calls_length; k++)
      n += all[i].calls[k].stream && (all[i].calls[k].method == SEND || all[i].calls[k].method == ACKNOWLEDGE);
  return n;
}

static void connect_all(void) {
  uint64_t limit = now_ns() + 120000000000ull;
  for (int i = 0; i < connections; i++) {
    open_connection(&all[i], i);
    while (ready < i + 1 - 50 || (i + 1 == connections && ready < connections)) { /* 50 at once: a queue of a listener is short */
      turn(100000000);
      if (now_ns() > limit) broken("the server does not accept all clients in 120 s");
    }
  }
}

static double run(void) {
  uint64_t begun = now_ns(), end = begun + (uint64_t)(seconds * 1e9), due = begun, heartbeat_check = begun;
  running = 1;
  for (int i = 0; i < connections; i++) {
    all[i].heartbeat_due = heartbeat_s ? begun + (uint64_t)(heartbeat_s * 1e9 / connections * (i + 1)) : UINT64_MAX;
    advance(&all[i]);
    flush(&all[i]);
  }
  for (uint64_t now; (now = now_ns()) < end && !(messages_wanted && messages >= messages_wanted) && wrong < WRONG_MAX;) {
    if (now >= heartbeat_check) {
      send_heartbeats(now);
      heartbeat_check = now + 10000000;
    }
    if (rate) due = begin_due(due, now);
    uint64_t until = end < heartbeat_check ? end : heartbeat_check;
    if (rate && due > now && due < until) until = due;
    turn(until > now ? until - now : 0);
  }
  running = 0;
  for (uint64_t limit = now_ns() + 30000000000ull; in_flight() && now_ns() < limit;) turn(10000000);
  wrong += in_flight();
  return (now_ns() - begun) / 1e9;
}

int main(int argc, char **argv) {
  int option, knows = argc > 1 && (!strcmp(argv[1], "send") || !strcmp(argv[1], "receive") || !strcmp(argv[1], "idle"));
  if (!knows) { fprintf(stderr, "usage: grpcload send|receive|idle [options]; see the head of grpcload.c\n"); return 2; }
  first_method = strcmp(argv[1], "send") ? RECEIVE : SEND;
  optind = 2;
  while ((option = getopt(argc, argv, "h:p:c:w:s:d:r:m:k:b:t:g:")) != -1) switch (option) {
    case 'h': host = optarg; break;
    case 'p': port = atoi(optarg); break;
    case 'c': connections = atoi(optarg); break;
    case 'w': window = atoi(optarg); break;
    case 's': seconds = atof(optarg); break;
    case 'd': folder = optarg; break;
    case 'r': rate = atof(optarg); break;
    case 'm': messages_wanted = strtoull(optarg, 0, 10); break;
    case 'k': ack_entries = atoi(optarg); break;
    case 'b': heartbeat_s = atof(optarg); break;
    case 't': call_ms = atoi(optarg); break;
    case 'g': group_size = atoi(optarg); break;
    default: return 2;
  }
  load_templates();
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  prctl(PR_SET_TIMERSLACK, 1); /* nanoseconds: calls begin when they are due */
  counter = (uint64_t)time(0) << 28;
  poller = epoll_create1(0);
  all = calloc(connections, sizeof *all);
  connect_all();
  printf("{\"ready\": %d}\n", connections);
  fflush(stdout);
  double took = run();
  printf("{\"mode\": \"%s\", \"connections\": %d, \"window\": %d, \"seconds\": %.3f, \"messages\": %llu, \"per_s\": %.0f, ", argv[1], connections, window, took, (unsigned long long)messages, messages / took);
  printf("\"p50_us\": %.0f, \"p99_us\": %.0f, \"max_us\": %.0f, \"calls\": %llu, ", quantile_us(.5), quantile_us(.99), quantile_us(1 - 1e-9), (unsigned long long)calls_done);
  printf("\"received\": %llu, \"empty\": %llu, \"heartbeats\": %llu, \"failures\": %llu}\n", (unsigned long long)received, (unsigned long long)empty_polls, (unsigned long long)heartbeats, (unsigned long long)wrong);
  return wrong != 0;
}
