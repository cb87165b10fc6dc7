{{/* Each helper takes a dict: root, table (services.yaml), and the name of a pod or a service. */}}

{{- define "pulse.labels" -}}
app.kubernetes.io/name: pulse
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- define "pulse.metadata" -}}
name: {{ .root.Release.Name }}-{{ .name }}
labels:
  {{- include "pulse.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* Of what has to be there before the release is: `prepare` and its network policy. */}}
{{- define "pulse.hook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* "no" where services.yaml gives a variable to other services alone. */}}
{{- define "pulse.gets" -}}
{{- range $prefix, $services := .table.only -}}
{{- if and (hasPrefix $prefix $.variable) (not (has $.name $services)) }}no{{ end -}}
{{- end -}}
{{- end -}}

{{/* Variables of a service: the later layer wins, and an empty value of the user's leaves the code its default. */}}
{{- define "pulse.environment" -}}
{{- $own := (index .table.services .name).environment | default dict -}}
{{- $values := dict "PULSE_SPARK__REMOTE" (include "pulse.spark" .root) -}}
{{- range $layer := list .root.Values.settings (index .root.Values.services .name).settings .table.environment $own -}}
{{- range $variable, $value := $layer -}}
{{- if or $value (hasKey $own $variable) -}}{{- $_ := set $values $variable $value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $asks := dict "table" .table "name" .name -}}
{{- range $variable, $value := $values }}
{{- if ne "no" (include "pulse.gets" (set $asks "variable" $variable)) }}
- name: {{ $variable }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- range $variable, $place := .root.Values.secrets }}
{{- if not (or (hasKey $own $variable) (eq "no" (include "pulse.gets" (set $asks "variable" $variable)))) }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $place.secret | default $.root.Values.existingSecret }}
      key: {{ $place.key }}
      {{- if $place.optional }}
      optional: true
      {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The Connect server of the chart. One session for all runs: see pulse_resources/local/provision.py. */}}
{{- define "pulse.spark" -}}
sc://{{ .Release.Name }}-spark:15002/;session_id=6f1c6a0e-8a53-4d0e-9d43-0c3c1f0d7b55
{{- end -}}

{{- define "pulse.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "pulse.security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "pulse.container" -}}
{{- $service := index .table.services .name -}}
name: {{ .name }}
image: {{ include "pulse.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: {{ $service.command | toJson }}
env:
  {{- include "pulse.environment" . | trim | nindent 2 }}
{{- with $service.ports }}
ports:
  {{- range $port, $number := . }}
  - {name: {{ $port }}, containerPort: {{ $number }}}
  {{- end }}
{{- end }}
{{- with $service.live }}
# A service that starts slowly is not unhealthy, and one that answers slowly lives.
startupProbe: {{ merge (dict "periodSeconds" 10 "timeoutSeconds" 30 "failureThreshold" 90) . | toJson }}
livenessProbe: {{ merge (dict "periodSeconds" 30 "timeoutSeconds" 30 "failureThreshold" 6) . | toJson }}
{{- end }}
{{- with $service.ready }}
readinessProbe: {{ merge (dict "periodSeconds" 5 "timeoutSeconds" 30 "failureThreshold" 2) . | toJson }}
{{- end }}
resources: {{ (index .root.Values.services .name).resources | toJson }}
{{ include "pulse.security" . }}
volumeMounts:
  {{- include "pulse.mounts" . | nindent 2 }}
{{- end -}}

{{- define "pulse.mounts" -}}
- {name: home, mountPath: /var/lib/pulse}
- {name: tmp, mountPath: /tmp}
{{- if hasPrefix "dagster" .name }}
- {name: dagster-home, mountPath: /opt/dagster}
- {name: dagster-data, mountPath: /var/lib/dagster}
{{- end }}
{{- if .root.Values.certificates.secret }}
- {name: certificates, mountPath: /etc/pulse/tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* The part of a pod's spec that all pods have, and its containers. */}}
{{- define "pulse.pod" -}}
serviceAccountName: {{ .root.Values.serviceAccountName }}
automountServiceAccountToken: false
enableServiceLinks: false
# Its first process takes over those whose parents ended, and ids of processes are of one count in a pod.
shareProcessNamespace: true
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .root.Values.scheduling }}
{{ toYaml . }}
{{- end }}
containers:
  {{- range $name := index .table.pods .name }}
  - {{- include "pulse.container" (dict "root" $.root "table" $.table "name" $name) | nindent 4 }}
  {{- end }}
volumes:
  - {name: home, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
  {{- if eq .name "dagster" }}
  - {name: dagster-home, emptyDir: {}}
  {{- end }}
  {{- with .root.Values.certificates.secret }}
  - {name: certificates, secret: {secretName: {{ . }}, defaultMode: 0440}}
  {{- end }}
{{- end -}}
