{{- define "cometmq.labels" -}}
app.kubernetes.io/name: cometmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cometmq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* All nameservers, as brokers and the console name them. */}}
{{- define "cometmq.namesrv" -}}
{{- $names := list -}}
{{- range $i := until (int .Values.namesrv.replicas) -}}
{{- $names = append $names (printf "%s-namesrv-%d.%s-namesrv.%s.svc:9876" $.Release.Name $i $.Release.Name $.Release.Namespace) -}}
{{- end -}}
{{ join ";" $names }}
{{- end }}

{{- define "cometmq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "cometmq.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "cometmq.probes" -}}
startupProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 5
  failureThreshold: 120
livenessProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* Options that nameservers and brokers share; words of a shell. */}}
{{- define "cometmq.options" -}}
--host 0.0.0.0 -o metricsExporterType=PROM
{{- if .Values.security.secretName }} -c /secret/broker.conf{{ end }}
{{- if .Values.tls.secretName }} -o tls.server.mode=enforcing -o tls.server.certPath=/tls/tls.crt -o tls.server.keyPath=/tls/tls.key -o tls.enable=true -o tls.client.trustCertPath=/tls/ca.crt{{ end }}
{{- end }}

{{- define "cometmq.mounts" -}}
- { name: data, mountPath: /data }
- { name: tmp, mountPath: /tmp }
{{- if .Values.security.secretName }}
- { name: secret, mountPath: /secret, readOnly: true }
{{- end }}
{{- if .Values.tls.secretName }}
- { name: tls, mountPath: /tls, readOnly: true }
{{- end }}
{{- end }}

{{- define "cometmq.volumes" -}}
- { name: tmp, emptyDir: {} }
{{- if .Values.security.secretName }}
- { name: secret, secret: { secretName: {{ .Values.security.secretName }}, defaultMode: 0440 } }
{{- end }}
{{- if .Values.tls.secretName }}
- { name: tls, secret: { secretName: {{ .Values.tls.secretName }}, defaultMode: 0440 } }
{{- end }}
{{- end }}

{{- define "cometmq.claim" -}}
- metadata: { name: data }
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .root.Values.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources: { requests: { storage: {{ .size }} } }
{{- end }}
