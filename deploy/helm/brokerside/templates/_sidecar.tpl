{{/*
What a chart of Kafka includes in its StatefulSet's pod template, with `.Subcharts.brokerside` as context:

  initContainers: brokerside.sidecar            a native sidecar: starts before the broker, stops after it
  volumes: brokerside.volumes
  volumeClaimTemplates: brokerside.volumeClaimTemplate      with spool.claim.enabled
*/}}

{{- define "brokerside.sidecar" -}}
- name: brokerside
  image: {{ include "brokerside.image" (list .Values.image .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: BROKERSIDE_BROKER_ID
      valueFrom:
        {{- toYaml .Values.brokerId | nindent 8 }}
    - name: BROKERSIDE_LISTENERS
      value: {{ toJson .Values.config.listeners | quote }}
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    {{- range .Values.config.listeners }}
    - {name: {{ printf "kafka-%s" (include "brokerside.port" .bind) }}, containerPort: {{ include "brokerside.port" .bind }}}
    {{- end }}
    - {name: admin, containerPort: {{ include "brokerside.port" .Values.config.admin.bind }}}
  # The broker starts later, so neither of these two may ask for it.
  startupProbe:
    httpGet: {path: /livez, port: admin}
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    httpGet: {path: /livez, port: admin}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
  readinessProbe:
    httpGet: {path: /readyz, port: admin}
    periodSeconds: 5
    timeoutSeconds: 3
  {{- with .Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "brokerside.securityContext" . | nindent 4 }}
  volumeMounts:
    - {name: brokerside-config, mountPath: /etc/brokerside, readOnly: true}
    - {name: brokerside-state, mountPath: /var/lib/brokerside}
    {{- with .Values.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "brokerside.volumes" -}}
- name: brokerside-config
  configMap: {name: {{ include "brokerside.fullname" . }}}
{{- if not .Values.spool.claim.enabled }}
- name: brokerside-state
  emptyDir: {sizeLimit: {{ .Values.spool.sizeLimit }}}
{{- end }}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "brokerside.volumeClaimTemplate" -}}
{{- if .Values.spool.claim.enabled }}
- metadata:
    name: brokerside-state
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .Values.spool.claim.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .Values.spool.claim.size }}}}
{{- end }}
{{- end }}
